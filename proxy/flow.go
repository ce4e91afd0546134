package proxy

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/proxy/datagram"
	"github.com/kube-splice/kube-splice/service"
)

// flow is one UDP flow, as the datagram engine's Token: it is the engine's to call.
type flow struct {
	proxy            *Proxy
	listener         *listener
	client, original netip.AddrPort
	pick             balancer.Pick
	picked           bool // pick is to be ended
	scope            service.Scope
	attempts         uint16
	refused          []netip.AddrPort // endpoints that have failed, until all have
}

// route is a listener's datagram.Router: it admits a client and picks its endpoint, or
// refuses it with a record.
func (p *Proxy) route(l *listener, a datagram.Arrival) (datagram.Route, error) {
	front := l.of.front.Load()
	f := &flow{proxy: p, listener: l, client: a.Client, scope: l.scope}
	p.counters.accepted.Add(1)
	l.of.tally.accepted.Add(1)
	if err := f.admit(front, a.Local); err != nil {
		return datagram.Route{}, f.refuse(p.notAdmitted(err), err)
	}
	if err := f.choose(nil); err != nil {
		p.counters.noEndpoints.Add(1)
		return datagram.Route{}, f.refuse(NoEndpoints, err)
	}
	l.of.tally.active.Add(1)
	idle := cmp.Or(front.port.Policy.IdleTimeout, p.cfg.UDPTimeout)
	return datagram.Route{Backend: f.pick.Endpoint, Idle: idle, Token: f}, nil
}

// admit finds out where the client wanted to go, and which endpoints it gets.
func (f *flow) admit(front *front, local netip.AddrPort) (err error) {
	if f.proxy.cfg.Direct {
		f.original, f.scope = local, front.directScope(f.scope)
		return nil
	}
	if f.original, err = f.proxy.flows.tracking.Original(f.client, local); err != nil {
		return fmt.Errorf("%w: %w", errDirect, err)
	}
	f.scope, err = front.admit(f.client.Addr(), f.original, f.scope)
	return err
}

// choose picks an endpoint that is not one of tried.
func (f *flow) choose(tried []netip.AddrPort) error {
	for {
		pick, err := f.listener.of.balancer.Pick(f.scope, f.client.Addr(), tried)
		if err != nil {
			return err
		}
		f.attempts++
		if err := f.proxy.mayDial(pick.Endpoint); err == nil {
			f.pick, f.picked = pick, true
			return nil
		}
		f.failed(pick)
		tried = append(tried, pick.Endpoint)
	}
}

func (f *flow) failed(pick balancer.Pick) {
	pick.Failed()
	f.proxy.counters.failedTries.Add(1)
	f.listener.of.tally.failedTries.Add(1)
}

// Failed implements datagram.Token. When every endpoint has failed, they may be back
// at the next datagram.
func (f *flow) Failed(error) netip.AddrPort {
	f.failed(f.pick)
	f.picked = false
	f.refused = append(f.refused, f.pick.Endpoint)
	if f.choose(f.refused) == nil {
		return f.pick.Endpoint
	}
	f.refused = nil
	if f.choose(nil) != nil {
		return netip.AddrPort{}
	}
	return f.pick.Endpoint
}

// Done implements datagram.Token.
func (f *flow) Done(r datagram.Result) {
	if f.picked {
		f.pick.Done()
	}
	p, s := f.proxy, f.listener.of
	s.tally.active.Add(-1)
	s.tally.up.Add(r.Up)
	s.tally.down.Add(r.Down)
	p.counters.up.Add(r.Up)
	p.counters.down.Add(r.Down)
	p.cfg.Record(f.record(r, closeOfFlow[r.Cause]))
}

// refuse records a client that gets no endpoint, and returns why.
func (f *flow) refuse(why Close, err error) error {
	f.proxy.cfg.Record(f.record(datagram.Result{Err: err}, why))
	return err
}

func (f *flow) record(r datagram.Result, why Close) Record {
	s := f.listener.of
	return Record{
		Name: s.name, Scope: f.scope, Client: f.client, Original: f.original, Backend: f.pick.Endpoint,
		Attempts: int(f.attempts), Sticky: f.pick.Sticky, Duration: r.Duration, Ended: time.Now(),
		Up: r.Up, Down: r.Down, DatagramsUp: r.DatagramsUp, DatagramsDown: r.DatagramsDown,
		Close: why, Err: r.Err, LogOff: s.front.Load().port.Policy.LogOff,
	}
}
