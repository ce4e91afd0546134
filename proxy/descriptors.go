package proxy

import (
	"errors"
	"math"
	"sync/atomic"
	"syscall"
)

// descriptors is how the process's limit on open files is shared out. Without it
// a burst of clients would take every descriptor, and while all of them waited for
// one more to reach their backends, nobody would be served and no rule be written.
type descriptors struct {
	limit    int64        // for all that follows
	flows    atomic.Int64 // of limit, for flows of UDP whether or not they are there
	standing atomic.Int64
}

// newDescriptors keeps back half of what the process may open, but no more than 64: what
// it has open itself, and needs for rules, manifests and logs, is among these.
func newDescriptors() *descriptors {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return &descriptors{limit: math.MaxInt64}
	}
	most := int64(min(limit.Cur, math.MaxInt64))
	kept := min(most/2, 64)
	return &descriptors{limit: most - kept}
}

// roomForListener reports whether another listener, or another held port, leaves
// enough for connections: a quarter of what flows leave.
func (p *Proxy) roomForListener() bool {
	most := p.descriptors.limit - p.descriptors.flows.Load()
	return int64(p.open+len(p.claims)) < most-most/4
}

// shareFor returns how many flows of UDP there may be, of the number wanted: half of what
// the listeners have left. The other half is for connections, so neither can take what
// the other needs.
func (d *descriptors) shareFor(flows, standing int) int64 {
	return min(int64(flows), max((d.limit-int64(standing))/2, 1))
}

var errNoRoomForListener = errors.New("too few descriptors for every Service port; raise the limit on open files (ulimit -n)")

// reserve counts a connection among the active ones if there is room for it.
func (p *Proxy) reserve() bool {
	d := p.descriptors
	taken := p.cfg.Engine.Descriptors(p.counters.active.Add(1)) + d.standing.Load() + d.flows.Load()
	if taken > d.limit {
		p.counters.active.Add(-1)
		return false
	}
	p.conns.Add(1)
	return true
}

// release is reserve undone.
func (p *Proxy) release() {
	p.counters.active.Add(-1)
	p.conns.Done()
}
