package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/service"
)

// listener is one Service port's listening socket with the balancer behind it.
type listener struct {
	name     service.Name
	addr     netip.AddrPort
	ln       *net.TCPListener
	balancer *balancer.Balancer
	port     atomic.Pointer[service.Port] // what it serves now; nil before the first update
	eligible atomic.Int64                 // endpoints that may be given connections
	tally    tally

	resumed chan struct{} // a token when a parked listener listens again
	closed  chan struct{}

	// The owner's.
	wanted bool
	parked bool
	left   bool // its Service port is gone from the Snapshot
}

// listen opens port's listener, parked until its first update, and begins to
// accept.
func (p *Proxy) listen(port *service.Port) (*listener, error) {
	lc := net.ListenConfig{KeepAlive: p.cfg.keepAlive(), KeepAliveConfig: p.cfg.KeepAlive}
	lc.SetMultipathTCP(false) // splice and TCP_INFO work on plain TCP sockets
	ln, err := p.ports.listen(p.ctx, &lc, p.cfg.bindAddress(port.Name.Family), port.Name)
	if err != nil {
		return nil, err
	}
	if err := park(ln); err != nil {
		_ = ln.Close()
		return nil, err
	}
	addr := ln.Addr().(*net.TCPAddr).AddrPort()
	l := &listener{
		name: port.Name, ln: ln, parked: true,
		addr:     netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()),
		balancer: balancer.New(balancer.Config{Evicted: &p.counters.evicted}),
		resumed:  make(chan struct{}, 1), closed: make(chan struct{}),
	}
	p.accepting.Go(func() { p.accept(l) })
	level := slog.LevelDebug
	if p.cfg.Direct { // then it is for people to connect to
		level = slog.LevelInfo
	}
	p.cfg.Log.Log(context.Background(), level, "listening", "service", l.name.String(), "address", l.addr.String())
	return l, nil
}

// update makes l serve port: its balancer gets the eligible endpoints, and the
// listener is parked when there are none. An unchanged port costs nothing.
func (l *listener) update(port *service.Port, defaultBalancer string) error {
	if l.port.Load() != port || l.left {
		l.left = false
		policy := port.Policy.Balancer
		if policy == "" {
			policy = defaultBalancer
		}
		eligible := port.Eligible(service.Cluster)
		l.balancer.Update(policy, port.Policy.Affinity, balancer.Eligible{service.Cluster: eligible})
		l.eligible.Store(int64(len(eligible)))
		l.port.Store(port)
	}
	return l.setParked(l.eligible.Load() == 0)
}

// leave refuses connections to a Service port that is gone, until its rules are
// gone too and the listener can be closed.
func (l *listener) leave() error {
	l.left = true
	l.balancer.Update("", 0, balancer.Eligible{})
	l.eligible.Store(0)
	return l.setParked(true)
}

func (l *listener) setParked(parked bool) error {
	if l.parked == parked {
		return nil
	}
	if parked {
		err := park(l.ln)
		l.parked = err == nil
		return err
	}
	if err := unpark(l.ln); err != nil {
		return err
	}
	l.parked = false
	select {
	case l.resumed <- struct{}{}:
	default: // an unused token is still there
	}
	return nil
}

// close closes the listening socket for good. Connections accepted from it go on;
// those still in search of a backend need the balancer.
func (l *listener) close() {
	close(l.closed)
	_ = l.ln.Close()
}

// Pauses after an accept that failed for want of something.
const shortestPause, longestPause = 5 * time.Millisecond, time.Second

// accept is l's goroutine: it hands every connection to a goroutine of its own at
// once, so nothing that befalls one connection delays another.
func (p *Proxy) accept(l *listener) {
	pause := time.Duration(0)
	for {
		conn, err := l.ln.AcceptTCP()
		switch {
		case err == nil:
			pause = 0
			p.counters.accepted.Add(1)
			l.tally.accepted.Add(1)
			if p.awaitRoom(l) {
				p.conns.Go(func() { p.serve(l, conn) })
			} else {
				p.turnAway(l, conn)
			}
		case errors.Is(err, net.ErrClosed):
			return
		case errors.Is(err, syscall.EINVAL): // parked: accept(2) on a socket that does not listen
			select {
			case <-l.resumed:
			case <-l.closed:
				return
			}
		default: // out of descriptors or memory: the clients wait in the kernel's queue
			pause = min(max(2*pause, shortestPause), longestPause)
			p.shortage.note(err)
			if !l.wait(pause) {
				return
			}
		}
	}
}

// wait pauses and reports whether the listener is still open.
func (l *listener) wait(pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return true
	case <-l.closed:
		return false
	}
}
