package proxy

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/kube-splice/kube-splice/proxy/relay"
	"github.com/kube-splice/kube-splice/service"
)

// tally counts what befell the connections of one Service port. It is written by the
// data path and read by anyone.
type tally struct {
	accepted, active, up, down, failedTries atomic.Int64
}

// ServiceCounts is a copy of what was counted for one Service port since its
// listener was opened.
type ServiceCounts struct {
	Name        service.Name
	Accepted    int64 // connections taken from the listener
	Active      int64 // of these, with a backend and not ended yet
	Up, Down    int64 // bytes client to backend, and back, of connections that have ended
	FailedTries int64 // dials that failed, whether or not another one succeeded
	Endpoints   int64 // endpoints that may be given connections
	// Affinity tells that the Service port has session affinity, and AffinityRecords
	// how many clients it remembers.
	Affinity        bool
	AffinityRecords int
}

// Services returns the counts of every Service port that has a listener, each Name
// once, in no order. It may be called from any goroutine and holds up no connection.
func (p *Proxy) Services() []ServiceCounts {
	listeners := *p.published.Load()
	counts := make([]ServiceCounts, len(listeners))
	for i, l := range listeners {
		counts[i] = l.counts()
	}
	return counts
}

func (l *listener) counts() ServiceCounts {
	c := ServiceCounts{
		Name: l.name, Accepted: l.tally.accepted.Load(), Active: l.tally.active.Load(),
		Up: l.tally.up.Load(), Down: l.tally.down.Load(), FailedTries: l.tally.failedTries.Load(),
		Endpoints: l.eligible.Load(),
	}
	// The balancer is asked only where it has something to tell: that takes its mutex.
	if port := l.port.Load(); port != nil && port.Policy.Affinity > 0 {
		c.Affinity, c.AffinityRecords = true, l.balancer.Stats().AffinityRecords
	}
	return c
}

// publish shows the listeners of this moment to Services.
func (p *Proxy) publish() {
	listeners := slices.Collect(maps.Values(p.listeners))
	p.published.Store(&listeners)
}

// relayed counts a relayed connection that has ended.
func (p *Proxy) relayed(l *listener, r relay.Result) {
	l.tally.active.Add(-1)
	l.tally.up.Add(r.Up)
	l.tally.down.Add(r.Down)
	p.counters.up.Add(r.Up)
	p.counters.down.Add(r.Down)
}
