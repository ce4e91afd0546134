package proxy

import (
	"errors"
	"math"
	"net"
	"syscall"
)

// descriptorsEach is what one connection takes: two sockets and, with
// relay.Copier, a pipe in each direction.
const descriptorsEach = 2 + 2*2

// room is how many descriptors connections and listeners may take together. A
// quarter of what the process may have is kept back, but no more than 64, for the
// rest of the program: its rules, manifests and logs.
func room() int64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt64
	}
	most := int64(min(limit.Cur, math.MaxInt64))
	return most - min(most/4, 64)
}

var errNoRoom = errors.New("too few descriptors are left to serve another connection")

// acceptOne takes a client from ln's queue, if there is room to serve it. Without
// that condition a burst of clients would take every descriptor, and while all of
// them waited for one more to reach their backends, nobody would be served.
func (p *Proxy) acceptOne(ln *net.TCPListener) (*net.TCPConn, error) {
	taken := p.counters.active.Load()*descriptorsEach + int64(len(*p.ownPorts.Load()))
	if taken+descriptorsEach > p.room {
		return nil, errNoRoom
	}
	return ln.AcceptTCP()
}
