package proxy

import (
	"errors"
	"math"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// descriptorsEach is what one connection takes: two sockets and, with
// relay.Copier, a pipe in each direction.
const descriptorsEach = 2 + 2*2

// descriptors is how the process's limit on open files is shared out. Without it
// a burst of clients would take every descriptor, and while all of them waited for
// one more to reach their backends, nobody would be served and no rule be written.
type descriptors struct {
	limit    int64        // for all that follows
	kept     int64        // beyond limit, for rules, manifests and logs
	flows    atomic.Int64 // of limit, for flows of UDP whether or not they are there
	standing atomic.Int64
	waiting  atomic.Int64  // clients accepted that wait for room
	freed    chan struct{} // a token when a connection ended while some wait
}

// newDescriptors keeps back a quarter of what the process may open, but no more
// than 64.
func newDescriptors() *descriptors {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return &descriptors{limit: math.MaxInt64, freed: make(chan struct{}, 1)}
	}
	most := int64(min(limit.Cur, math.MaxInt64))
	kept := min(most/4, 64)
	return &descriptors{limit: most - kept, kept: kept, freed: make(chan struct{}, 1)}
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

// Why a client that was accepted cannot be served.
var (
	errNoRoom   = errors.New("too few descriptors are left to serve another connection")
	errStopping = errors.New("the proxy stops")
	errRemoved  = errors.New("the Service is served here no more")
)

// reserve counts a connection among the active ones if there is room for it.
func (p *Proxy) reserve() bool {
	d := p.descriptors
	taken := p.counters.active.Add(1)*descriptorsEach + d.standing.Load() + d.waiting.Load() + d.flows.Load()
	if taken > d.limit {
		p.counters.active.Add(-1)
		return false
	}
	return true
}

// awaitRoom waits until there is room to serve a client that l has accepted; more
// of them wait in the kernel's queue meanwhile. It returns why the client cannot
// be served: the listener is closed, or too many wait at other listeners.
func (p *Proxy) awaitRoom(l *listener) error {
	if p.reserve() {
		return nil
	}
	defer p.descriptors.waiting.Add(-1)
	if p.descriptors.waiting.Add(1) > p.descriptors.kept/2 {
		p.shortage.note(errNoRoom)
		return errNoRoom
	}
	for pause := shortestPause; !p.reserve(); pause = min(2*pause, longestPause) {
		p.shortage.note(errNoRoom)
		select {
		case <-p.descriptors.freed:
			pause = shortestPause
		case <-time.After(pause):
		case <-l.closed:
			if p.stopping.Load() {
				return errStopping
			}
			return errRemoved
		}
	}
	return nil
}

// release is reserve undone.
func (p *Proxy) release() {
	p.counters.active.Add(-1)
	if p.descriptors.waiting.Load() > 0 {
		select {
		case p.descriptors.freed <- struct{}{}:
		default: // somebody is on the way already
		}
	}
}

// turnAway resets a client for which there was no room.
func (p *Proxy) turnAway(l *listener, client *net.TCPConn, err error) {
	p.counters.active.Add(1)
	why := Internal
	switch err {
	case errStopping:
		why = Shutdown
	case errRemoved:
		p.counters.noEndpoints.Add(1)
		why = NoEndpoints
	}
	p.refuse(client, l.newRecord(client), time.Now(), why, err)
}
