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
	"github.com/kube-splice/kube-splice/proxy/relay"
	"github.com/kube-splice/kube-splice/service"
)

// listener is the listening socket for the clients of one scope of a Service port.
type listener struct {
	proxy *Proxy
	of    *servicePort
	scope service.Scope
	addr  netip.AddrPort
	tcp   relay.Listener     // nil: it is for UDP
	udp   *datagram.Listener // nil: it is for TCP

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
	l := &listener{proxy: p, of: s, scope: scope, parked: true}
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
	lc := net.ListenConfig{KeepAlive: -1, Control: p.inherited} // -1: set once, and not for each connection
	lc.SetMultipathTCP(false)                                   // splice and TCP_INFO work on plain TCP sockets
	var ln *net.TCPListener
	err := p.ports.listen(l.name(), func(port uint16) (err error) {
		ln, err = listenTCP(p.ctx, &lc, netip.AddrPortFrom(p.cfg.bindAddress(l.of.name.Family), port))
		return err
	})
	if err != nil {
		return err
	}
	addr := ln.Addr().(*net.TCPAddr).AddrPort()
	l.addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	if err := park(ln); err != nil {
		_ = ln.Close()
		return err
	}
	l.tcp, err = p.cfg.Engine.Listen(ln, l)
	return err
}

// inherited sets what accepted sockets take over from the one that listens (socket(7)).
func (p *Proxy) inherited(_, _ string, raw syscall.RawConn) error {
	var optErr error
	err := raw.Control(func(fd uintptr) { optErr = setKeepAlive(int(fd), p.cfg.KeepAlive) })
	return errors.Join(err, optErr)
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
		err := l.tcp.Control(parkSocket)
		l.parked = err == nil
		return err
	}
	if err := l.tcp.Control(unparkSocket); err != nil {
		return err
	}
	l.parked = false
	l.tcp.Resume()
	return nil
}

// close closes the listening socket for good. Connections accepted from it go on;
// those still in search of a backend need the balancer. Flows end.
func (l *listener) close() {
	if l.udp != nil {
		_ = l.udp.Close()
		return
	}
	l.tcp.Close()
}

// Reserve, Release, Short and TurnedAway implement relay.Handler; Arrive is connection.go's.

func (l *listener) Reserve() bool { return l.proxy.reserve() }

func (l *listener) Release() { l.proxy.release() }

func (l *listener) Short(err error) {
	if err == nil {
		err = relay.ErrNoRoom
	}
	l.proxy.shortage.note(err)
}

func (l *listener) TurnedAway(client netip.AddrPort, err error) {
	p, now := l.proxy, time.Now()
	p.counters.accepted.Add(1)
	l.of.tally.accepted.Add(1)
	rec := Record{Name: l.of.name, Scope: l.scope, Client: client, Ended: now, Close: Internal, Err: err, LogOff: l.of.front.Load().port.Policy.LogOff}
	if errors.Is(err, relay.ErrClosed) {
		rec.Close, rec.Err = NoEndpoints, errRemoved
		if p.stopping.Load() {
			rec.Close, rec.Err = Shutdown, errStopping
		} else {
			p.counters.noEndpoints.Add(1)
		}
	}
	p.cfg.Record(rec)
}

// Why a client that was accepted cannot be served.
var (
	errStopping = errors.New("the proxy stops")
	errRemoved  = errors.New("the Service is served here no more")
)
