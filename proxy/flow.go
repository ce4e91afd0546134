package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/proxy/datagram"
	"github.com/kube-splice/kube-splice/service"
)

// flow is one UDP flow, as the datagram engine's Token: its methods are the engine's
// to call, in the one goroutine that serves all flows, so none of them waits.
type flow struct {
	proxy            *Proxy
	listener         *listener
	client, original netip.AddrPort
	pick             balancer.Pick
	failed           []netip.AddrPort // endpoints not to be tried again before all others were
	attempts         uint32
	scope            service.Scope
	picked           bool // pick is to be ended
	preserve         bool // the endpoint is to see the client's address
	preserving       bool // the last one does
}

// route is a listener's datagram.Router: it admits a client and picks its endpoint, or
// refuses it with a record.
func (p *Proxy) route(l *listener, a datagram.Arrival) (datagram.Route, error) {
	front := l.of.front.Load()
	f := &flow{proxy: p, listener: l, client: a.Client, scope: l.scope}
	p.counters.flows.Add(1)
	l.of.tally.accepted.Add(1)
	if err := f.admit(front, a.Local); err != nil {
		return datagram.Route{}, f.refuse(p.notAdmitted(err), err)
	}
	if err := f.choose(); err != nil {
		p.counters.noEndpoints.Add(1)
		return datagram.Route{}, f.refuse(NoEndpoints, err)
	}
	p.counters.flowsActive.Add(1)
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
	f.original, err = f.proxy.flows.tracking.Original(f.client, local)
	switch {
	case errors.Is(err, datagram.ErrUntracked):
		return fmt.Errorf("%w: %w", errDirect, err)
	case err != nil:
		return err
	}
	portal, err := front.admit(f.client.Addr(), f.original, f.scope)
	f.scope, f.preserve = portal.Scope, front.port.Preserves(portal)
	return err
}

// choose picks an endpoint that has not failed.
func (f *flow) choose() error {
	for {
		pick, err := f.listener.of.balancer.Pick(f.scope, f.client.Addr(), f.failed)
		if err != nil {
			return err
		}
		f.pick, f.picked = pick, true
		if err = f.proxy.mayDial(service.UDP, pick.Endpoint); err == nil {
			f.attempts++
			return nil
		}
		f.blame(err)
	}
}

// blame gives up the endpoint picked.
func (f *flow) blame(err error) {
	p, s := f.proxy, f.listener.of
	f.pick.Failed()
	f.picked = false
	f.failed = append(f.failed, f.pick.Endpoint)
	p.counters.failedTries.Add(1)
	s.tally.failedTries.Add(1)
	p.cfg.Log.Debug("endpoint failed", "service", f.listener.name().String(), "endpoint", f.pick.Endpoint.String(), "error", err)
}

// Failed implements datagram.Token. When all endpoints have failed, the others than
// the last one are tried anew, and at last that one too: any may be back by now.
func (f *flow) Failed(err error) netip.AddrPort {
	f.blame(err)
	last := []netip.AddrPort{f.pick.Endpoint}
	for _, failed := range [][]netip.AddrPort{f.failed, last, nil} {
		f.failed = failed
		if f.choose() == nil {
			f.proxy.counters.retries.Add(1)
			return f.pick.Endpoint
		}
	}
	return netip.AddrPort{}
}

// Done implements datagram.Token.
func (f *flow) Done(r datagram.Result) {
	p, s := f.proxy, f.listener.of
	if f.picked {
		f.pick.Done()
	}
	switch {
	case r.Cause == datagram.Refused:
		p.counters.flowsRefused.Add(1)
	case r.Cause == datagram.Internal && isShortage(r.Err):
		p.shortage.note(r.Err)
	}
	if f.preserve && !f.preserving {
		p.counters.hidden.Add(1)
	}
	p.counters.flowsActive.Add(-1)
	s.tally.active.Add(-1)
	p.relayed(s, r.Up, r.Down)
	p.counters.datagramsUp.Add(r.DatagramsUp)
	p.counters.datagramsDown.Add(r.DatagramsDown)
	s.tally.datagramsUp.Add(r.DatagramsUp)
	s.tally.datagramsDown.Add(r.DatagramsDown)
	p.cfg.Record(f.record(r, closeOfFlow[r.Cause]))
}

// refuse records a client that gets no endpoint, unless there are too many, and returns
// why.
func (f *flow) refuse(why Close, err error) error {
	if f.proxy.flows.refusals.mayRecord() {
		f.proxy.cfg.Record(f.record(datagram.Result{Err: err}, why))
	}
	return err
}

func (f *flow) record(r datagram.Result, why Close) Record {
	s := f.listener.of
	rec := Record{
		Name: s.name, Scope: f.scope, Client: f.client, Original: f.original, Backend: f.pick.Endpoint,
		Attempts: int(f.attempts), Sticky: f.pick.Sticky, Duration: r.Duration, Ended: time.Now(),
		Up: r.Up, Down: r.Down, DatagramsUp: r.DatagramsUp, DatagramsDown: r.DatagramsDown,
		Close: why, Err: r.Err, LogOff: s.front.Load().port.Policy.LogOff,
	}
	switch {
	case r.Cause == 0 || why == Refused || why == Internal: // no endpoint was reached
	case f.preserving:
		rec.ClientIP = Preserved
	default:
		rec.ClientIP = Hidden
	}
	return rec
}
