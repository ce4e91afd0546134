package balancer

import (
	"errors"
	"net/netip"
	"time"

	"github.com/kube-splice/kube-splice/service"
)

// ErrNoEndpoints is returned by [Balancer.Pick] when no eligible endpoint is
// left: there is none, or every one was tried.
var ErrNoEndpoints = errors.New("no endpoint left to pick")

// Pick is one endpoint chosen for one dial attempt. It counts as an open
// connection of that endpoint until exactly one of Failed and Done is called,
// once. Its methods may be called from any goroutine; the zero Pick has none.
type Pick struct {
	Endpoint netip.AddrPort
	// Sticky says that session affinity made the choice, not the policy.
	Sticky bool

	balancer *Balancer
	endpoint *endpoint
	client   netip.Addr
}

// Pick chooses an endpoint that is eligible in the scope for a connection of client
// and is not one of tried. With affinity on, the client's live record decides if it
// may, and the choice becomes, or renews, the client's record. There is one record a
// client whatever the scope (as kube-proxy has it), so where its endpoint is not
// eligible in this scope, the client moves. An IPv4-mapped client address is the same
// client as the IPv4 address; zones are ignored.
//
// A retry passes the endpoints that failed already. Pick returns
// [ErrNoEndpoints] when none is left; nothing is to be called on the Pick then.
func (b *Balancer) Pick(in service.Scope, client netip.Addr, tried []netip.AddrPort) (Pick, error) {
	client = client.Unmap().WithZone("")
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.candidates(in, tried)
	if c.left == 0 {
		return Pick{}, ErrNoEndpoints
	}
	var now time.Time
	var e *endpoint
	if b.affinity.on() {
		now = time.Now()
		e = b.affinity.lookup(client, now)
	}
	sticky := e != nil && e.eligible[in] && !c.tried(e)
	if !sticky {
		e = b.scopes[in].policy.choose(c, client)
	}
	if b.affinity.on() {
		b.affinity.pin(client, e, now)
	}
	e.active++
	return Pick{Endpoint: e.addr, Sticky: sticky, balancer: b, endpoint: e, client: client}, nil
}

// candidates starts a turn: the eligible endpoints of a scope, those of tried marked.
func (b *Balancer) candidates(in service.Scope, tried []netip.AddrPort) candidates {
	b.turn++
	all := b.scopes[in].eligible
	c := candidates{all: all, turn: b.turn, left: len(all)}
	for _, addr := range tried {
		e := b.known[addr]
		if e != nil && e.eligible[in] && !c.tried(e) {
			e.triedIn = c.turn
			c.left--
		}
	}
	return c
}

// Connected reports that the dial succeeded and how long it took. The
// connection stays counted until Done.
func (p Pick) Connected(dial time.Duration) {
	p.balancer.mu.Lock()
	defer p.balancer.mu.Unlock()
	p.endpoint.latency.observe(dial, time.Now())
}

// Failed reports that the dial failed: the connection is no longer counted, and
// the client's affinity record is dropped if it still points at this endpoint.
func (p Pick) Failed() {
	p.balancer.mu.Lock()
	defer p.balancer.mu.Unlock()
	p.endpoint.latency.observe(failedDial, time.Now())
	p.balancer.affinity.unpin(p.client, p.endpoint)
	p.end()
}

// Done reports that the connection, once established, has ended.
func (p Pick) Done() {
	p.balancer.mu.Lock()
	defer p.balancer.mu.Unlock()
	p.end()
}

func (p Pick) end() {
	p.endpoint.active--
	p.balancer.release(p.endpoint)
}
