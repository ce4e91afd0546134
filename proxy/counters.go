package proxy

import (
	"sync/atomic"

	"github.com/kube-splice/kube-splice/proxy/datagram"
)

// counters are written by the data path and read by anyone.
type counters struct {
	accepted, active, refusedDirect, denied, noEndpoints, dialFailed atomic.Int64
	failedTries, failing, retries, up, down                          atomic.Int64
	flows, flowsActive, flowsRefused, datagramsUp, datagramsDown     atomic.Int64
	badHeader, hidden                                                atomic.Int64
	evicted                                                          atomic.Uint64
}

// Counts is a copy of what the Proxy has counted since it was made. Connections are those
// of TCP only; whatever else is counted, is so of UDP's flows too.
type Counts struct {
	Accepted      int64  // connections taken from listeners
	Active        int64  // of these, not ended yet
	RefusedDirect int64  // came to a listener without being led there
	Denied        int64  // refused because their address is in none of the source ranges
	BadHeader     int64  // reset because a trusted peer did not send the PROXY header it had to
	Hidden        int64  // connections, and flows that have ended, whose backend was to see the client's address and did not
	NoEndpoints   int64  // refused because every eligible endpoint had left
	DialFailed    int64  // connections reset because no endpoint could be reached
	FailedTries   int64  // endpoints that could not be reached, whether or not another one could
	Retries       int64  // endpoints tried after the first
	Up, Down      int64  // bytes client to backend, and back, of what has ended
	Evicted       uint64 // affinity records that made room for others
	Failing       int64  // listeners and portals that cannot be opened at present
}

// Counts returns the counts. Each is exact; together they are not of one moment.
func (p *Proxy) Counts() Counts {
	c := &p.counters
	return Counts{
		Accepted: c.accepted.Load(), Active: c.active.Load(),
		RefusedDirect: c.refusedDirect.Load(), Denied: c.denied.Load(), BadHeader: c.badHeader.Load(), Hidden: c.hidden.Load(),
		NoEndpoints: c.noEndpoints.Load(), DialFailed: c.dialFailed.Load(), FailedTries: c.failedTries.Load(), Retries: c.retries.Load(),
		Up: c.up.Load(), Down: c.down.Load(),
		Evicted: c.evicted.Load(), Failing: c.failing.Load(),
	}
}

// FlowCounts is a copy of what was counted of UDP alone.
type FlowCounts struct {
	Accepted int64 // first datagrams of clients that had no flow
	Active   int64 // flows that have an endpoint and have not ended
	Refused  int64 // flows that ended because no endpoint could be reached
	// Datagrams client to backend, and back, of flows that have ended.
	DatagramsUp, DatagramsDown int64
	// Engine is what the datagram engine has counted.
	Engine datagram.Counts
}

// FlowCounts returns the counts of UDP, as Counts does.
func (p *Proxy) FlowCounts() FlowCounts {
	c := &p.counters
	counts := FlowCounts{
		Accepted: c.flows.Load(), Active: c.flowsActive.Load(), Refused: c.flowsRefused.Load(),
		DatagramsUp: c.datagramsUp.Load(), DatagramsDown: c.datagramsDown.Load(),
	}
	if loop := p.flows.loop.Load(); loop != nil {
		counts.Engine = loop.Counts()
	}
	return counts
}

// Dropped is how many datagrams were not passed on, for whatever reason.
func (c FlowCounts) Dropped() int64 {
	e := c.Engine
	return e.Unrouted + e.NoSocket + e.Full + e.Denied + e.Unsendable
}
