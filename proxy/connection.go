package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/proxy/relay"
	"github.com/kube-splice/kube-splice/service"
)

// serve is the goroutine of one accepted connection: it leads it from the accept
// queue to the relay engine, which ends it.
func (p *Proxy) serve(l *listener, client *net.TCPConn) {
	accepted := time.Now()
	port := l.port.Load()
	rec := Record{Name: l.name, Client: addrPort(client.RemoteAddr()), LogOff: port.Policy.LogOff}

	var err error
	if rec.Original, err = p.admit(port, client); err != nil {
		p.counters.refusedDirect.Add(1)
		p.refuse(client, rec, accepted, RefusedDirect, err)
		return
	}
	backend, pick, err := p.connect(l, &rec)
	rec.Dial = time.Since(accepted)
	p.counters.retries.Add(int64(max(rec.Attempts-1, 0)))
	if err != nil {
		p.refuse(client, rec, accepted, p.whyNot(l, err), err)
		return
	}
	l.tally.active.Add(1)
	limits := relay.Limits{HalfClosed: p.cfg.HalfClosed, Idle: port.Policy.IdleTimeout, Unanswered: p.cfg.unanswered()}
	p.cfg.Engine.Relay(p.ctx, relay.Pair{Client: client, Backend: backend, Limits: limits}, func(r relay.Result) {
		pick.Done()
		p.relayed(l, r)
		rec.Up, rec.Down, rec.Close, rec.Err = r.Up, r.Down, closeOf[r.Cause], r.Err
		p.ended(rec, accepted)
	})
}

// errDirect refuses a client that found a listener's port by itself: it would get
// round every rule that guards the Service's addresses.
var errDirect = errors.New("not led here by a rule of this Service")

// admit returns where the client wanted to go and whether this listener serves
// that.
func (p *Proxy) admit(port *service.Port, client *net.TCPConn) (netip.AddrPort, error) {
	if p.cfg.Direct {
		return addrPort(client.LocalAddr()), nil
	}
	original, err := originalDestination(client)
	if err != nil {
		return original, fmt.Errorf("%w: %w", errDirect, err)
	}
	for _, portal := range port.Portals() {
		if original.Port() == portal.Number && (portal.Kind == service.NodePort || original.Addr() == portal.Addr) {
			return original, nil
		}
	}
	return original, errDirect
}

// whyNot says why no backend was reached.
func (p *Proxy) whyNot(l *listener, err error) Close {
	switch {
	case p.ctx.Err() != nil:
		return Shutdown
	case errors.Is(err, balancer.ErrNoEndpoints) || l.eligible.Load() == 0:
		p.counters.noEndpoints.Add(1)
		return NoEndpoints
	default:
		p.counters.dialFailed.Add(1)
		return DialFailed
	}
}

// refuse resets a client that gets no backend. A FIN would look like an answer
// of no bytes.
func (p *Proxy) refuse(client *net.TCPConn, rec Record, accepted time.Time, why Close, err error) {
	_ = client.SetLinger(0)
	_ = client.Close()
	rec.Close, rec.Err = why, err
	p.ended(rec, accepted)
}

// ended tells the world that a connection is over.
func (p *Proxy) ended(rec Record, accepted time.Time) {
	rec.Ended = time.Now()
	rec.Duration = rec.Ended.Sub(accepted)
	p.release()
	p.cfg.Record(rec)
}

// addrPort returns the address of a TCP socket, an IPv4-mapped one as IPv4.
func addrPort(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
