package proxy

import "sync/atomic"

// counters are written by the data path and read by anyone.
type counters struct {
	accepted, active, refusedDirect, denied, noEndpoints, dialFailed atomic.Int64
	failedTries, failing, retries, up, down                          atomic.Int64
	evicted                                                          atomic.Uint64
}

// Counts is a copy of what the Proxy has counted since it was made.
type Counts struct {
	Accepted      int64  // connections taken from listeners
	Active        int64  // of these, not ended yet
	RefusedDirect int64  // came to a listener without being led there
	Denied        int64  // reset because their address is in none of the source ranges
	NoEndpoints   int64  // reset because every eligible endpoint had left
	DialFailed    int64  // reset because no endpoint could be reached
	FailedTries   int64  // dials that failed, whether or not another one succeeded
	Retries       int64  // dials after a connection's first
	Up, Down      int64  // bytes client to backend, and back, of connections that have ended
	Evicted       uint64 // affinity records that made room for others
	Failing       int64  // listeners and portals that cannot be opened at present
}

// Counts returns the counts. Each is exact; together they are not of one moment.
func (p *Proxy) Counts() Counts {
	c := &p.counters
	return Counts{
		Accepted: c.accepted.Load(), Active: c.active.Load(),
		RefusedDirect: c.refusedDirect.Load(), Denied: c.denied.Load(),
		NoEndpoints: c.noEndpoints.Load(), DialFailed: c.dialFailed.Load(), FailedTries: c.failedTries.Load(), Retries: c.retries.Load(),
		Up: c.up.Load(), Down: c.down.Load(),
		Evicted: c.evicted.Load(), Failing: c.failing.Load(),
	}
}
