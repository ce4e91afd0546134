package proxy

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/kube-splice/kube-splice/service"
)

// tally counts what befell the connections, or flows, of one Service port. It is written by the
// data path and read by anyone.
type tally struct {
	accepted, active, up, down, failedTries atomic.Int64
	datagramsUp, datagramsDown              atomic.Int64 // of UDP
}

// ServiceCounts is a copy of what was counted for one Service port since it is served,
// whichever of its listeners the clients came to. The connections of UDP are its flows.
type ServiceCounts struct {
	Name        service.Name
	Accepted    int64 // connections taken from its listeners
	Active      int64 // of these, with a backend and not ended yet
	Up, Down    int64 // bytes client to backend, and back, of connections that have ended
	FailedTries int64 // endpoints that could not be reached, whether or not another one could
	// Datagrams of UDP that carried the bytes.
	DatagramsUp, DatagramsDown int64
	// Endpoints that may be given connections: where clients get different ones, as many as
	// those that may go to any node get.
	Endpoints int64
	// Affinity tells that the Service port has session affinity, and AffinityRecords
	// how many clients it remembers.
	Affinity        bool
	AffinityRecords int
}

// Services returns the counts of every Service port that is served, each Name once, in no order. It may be called from any goroutine and holds up no connection.
func (p *Proxy) Services() []ServiceCounts {
	services := *p.published.Load()
	counts := make([]ServiceCounts, len(services))
	for i, s := range services {
		counts[i] = s.counts()
	}
	return counts
}

func (s *servicePort) counts() ServiceCounts {
	c := ServiceCounts{
		Name: s.name, Accepted: s.tally.accepted.Load(), Active: s.tally.active.Load(),
		Up: s.tally.up.Load(), Down: s.tally.down.Load(), FailedTries: s.tally.failedTries.Load(),
		DatagramsUp: s.tally.datagramsUp.Load(), DatagramsDown: s.tally.datagramsDown.Load(),
		Endpoints: max(s.eligible[service.Cluster].Load(), s.eligible[service.Local].Load()),
	}
	// The balancer is asked only where it has something to tell: that takes its mutex.
	if s.front.Load().port.Policy.Affinity > 0 {
		c.Affinity, c.AffinityRecords = true, s.balancer.Stats().AffinityRecords
	}
	return c
}

// publish shows the Service ports of this moment to Services.
func (p *Proxy) publish() {
	services := slices.Collect(maps.Values(p.services))
	p.published.Store(&services)
}

// relayed counts the bytes of a connection or flow that has ended.
func (p *Proxy) relayed(s *servicePort, up, down int64) {
	s.tally.up.Add(up)
	s.tally.down.Add(down)
	p.counters.up.Add(up)
	p.counters.down.Add(down)
}
