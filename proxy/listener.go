package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/kube-splice/kube-splice/proxy/datagram"
	"github.com/kube-splice/kube-splice/service"
)

// listener is the listening socket for the clients of one scope of a Service port.
type listener struct {
	of    *servicePort
	scope service.Scope
	addr  netip.AddrPort
	ln    *net.TCPListener   // nil: it is for UDP
	udp   *datagram.Listener // nil: it is for TCP

	resumed chan struct{} // a token when a parked listener listens again
	closed  chan struct{}

	// The owner's.
	wanted   bool
	parked   bool
	inTheWay bool // a portal needs its port
}

func (l *listener) name() service.ListenerName {
	return service.ListenerName{Name: l.of.name, Scope: l.scope}
}

// listen opens a Service port's listener of a scope, parked at first.
func (p *Proxy) listen(s *servicePort, scope service.Scope) (*listener, error) {
	l := &listener{of: s, scope: scope, parked: true, resumed: make(chan struct{}, 1), closed: make(chan struct{})}
	open := p.listenTCP
	if s.name.Protocol == service.UDP {
		open = p.listenUDP
	}
	if err := open(l); err != nil {
		return nil, err
	}
	level := slog.LevelDebug
	if p.cfg.Direct { // then it is for people to connect to
		level = slog.LevelInfo
	}
	p.cfg.Log.Log(context.Background(), level, "listening", "service", l.name().String(), "address", l.addr.String())
	return l, nil
}

// listenTCP opens l's socket and begins to accept.
func (p *Proxy) listenTCP(l *listener) error {
	lc := net.ListenConfig{KeepAlive: p.cfg.keepAlive(), KeepAliveConfig: p.cfg.KeepAlive}
	lc.SetMultipathTCP(false) // splice and TCP_INFO work on plain TCP sockets
	err := p.ports.listen(l.name(), func(port uint16) (err error) {
		l.ln, err = listenTCP(p.ctx, &lc, netip.AddrPortFrom(p.cfg.bindAddress(l.of.name.Family), port))
		return err
	})
	if err != nil {
		return err
	}
	if err := park(l.ln); err != nil {
		_ = l.ln.Close()
		return err
	}
	addr := l.ln.Addr().(*net.TCPAddr).AddrPort()
	l.addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	p.accepting.Go(func() { p.accept(l) })
	return nil
}

// setParked makes l refuse connections, or take them again.
func (l *listener) setParked(parked bool) error {
	if l.parked == parked {
		return nil
	}
	if l.udp != nil {
		return l.setParkedUDP(parked)
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
// those still in search of a backend need the balancer. Flows end.
func (l *listener) close() {
	close(l.closed)
	if l.udp != nil {
		_ = l.udp.Close()
		return
	}
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
			l.of.tally.accepted.Add(1)
			if err := p.awaitRoom(l); err == nil {
				p.conns.Go(func() { p.serve(l, conn) })
			} else {
				p.turnAway(l, conn, err)
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
