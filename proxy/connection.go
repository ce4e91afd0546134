package proxy

import (
	"errors"
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
	front := l.of.front.Load()
	rec := l.newRecord(client)
	if err := p.admit(l, front, client, &rec); err != nil {
		p.refuse(client, rec, accepted, p.notAdmitted(err), err)
		return
	}
	backend, pick, err := p.connect(l, &rec)
	rec.Dial = time.Since(accepted)
	p.counters.retries.Add(int64(max(rec.Attempts-1, 0)))
	if err != nil {
		p.refuse(client, rec, accepted, p.whyNot(l, rec.Scope, err), err)
		return
	}
	l.of.tally.active.Add(1)
	limits := relay.Limits{HalfClosed: p.cfg.HalfClosed, Idle: front.port.Policy.IdleTimeout, Unanswered: p.cfg.unanswered()}
	p.cfg.Engine.Relay(p.ctx, relay.Pair{Client: client, Backend: backend, Limits: limits}, func(r relay.Result) {
		pick.Done()
		l.of.tally.active.Add(-1)
		p.relayed(l.of, r.Up, r.Down)
		rec.Up, rec.Down, rec.Close, rec.Err = r.Up, r.Down, closeOf[r.Cause], r.Err
		p.ended(rec, accepted)
	})
}

// newRecord begins the record of a client of l.
func (l *listener) newRecord(client *net.TCPConn) Record {
	return Record{Name: l.of.name, Scope: l.scope, Client: addrPort(client.RemoteAddr()), LogOff: l.of.front.Load().port.Policy.LogOff}
}

// whyNot says why no backend was reached.
func (p *Proxy) whyNot(l *listener, scope service.Scope, err error) Close {
	switch {
	case p.ctx.Err() != nil:
		return Shutdown
	case errors.Is(err, balancer.ErrNoEndpoints) || l.of.eligible[scope].Load() == 0:
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
