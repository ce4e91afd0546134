package relay

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Loops is the Engine of event loops: each is one goroutine that serves its connections
// from accept(2) to close(2), and blocks for none of them.
type Loops struct {
	loops []*loop
	next  atomic.Uint32 // who watches the next listening socket
	pipes atomic.Int64  // open ones, of all loops

	ephemeral uint16 // the first port that the kernel gives sockets by itself
	done      sync.WaitGroup
}

// NewLoops starts an engine of n loops; 0 means GOMAXPROCS. Close ends it.
func NewLoops(n int) (*Loops, error) {
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
	}
	e := &Loops{ephemeral: firstEphemeral()}
	for range n {
		l, err := newLoop(e)
		if err != nil {
			e.Close()
			return nil, err
		}
		e.loops = append(e.loops, l)
		e.done.Go(l.run)
	}
	return e, nil
}

// Descriptors implements Engine. Only pipes that are there count: a connection has one only
// while bulk data passes or waits, and does without where there is none.
func (e *Loops) Descriptors(connections int64) int64 { return 2*connections + 2*e.pipes.Load() }

// Listen implements Engine. One loop watches the socket and spreads what it accepts.
func (e *Loops) Listen(ln *net.TCPListener, h Handler) (Listener, error) {
	fd, err := detach(ln)
	if err != nil {
		return nil, err
	}
	a := &acceptor{fd: fd, handler: h, loop: e.loops[int(e.next.Add(1))%len(e.loops)]}
	a.timer.owner = a
	if err := a.loop.call(a.open); err != nil {
		return nil, errors.Join(err, unix.Close(int(fd)))
	}
	return a, nil
}

// Abort implements Engine.
func (e *Loops) Abort() {
	for _, l := range e.loops {
		l.post(l.abort)
	}
}

// Close implements Engine. A connection still there is reset.
func (e *Loops) Close() {
	e.Abort()
	for _, l := range e.loops {
		l.post(func() { l.stopped = true })
	}
	e.done.Wait()
	for _, l := range e.loops {
		l.close()
	}
}

// Connections returns how many connections each loop has.
func (e *Loops) Connections() []int {
	counts := make([]int, len(e.loops))
	for i, l := range e.loops {
		counts[i] = int(l.connections.Load())
	}
	return counts
}

// least returns the loop that is to have the next connection that own has accepted. It is
// the one with the fewest, but own while it has hardly more: a hand-over has to wake
// another thread.
func (e *Loops) least(own *loop) *loop {
	least, fewest := own, own.connections.Load()
	slack := 1 + fewest/8
	for _, l := range e.loops {
		if n := l.connections.Load(); n+slack < fewest {
			least, fewest, slack = l, n, 0
		}
	}
	return least
}

// firstEphemeral returns the first port of ip_local_port_range (ip(7)), or 0 if it cannot
// be told.
func firstEphemeral() (first uint16) {
	text, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	_, _ = fmt.Sscan(string(text), &first)
	return first
}
