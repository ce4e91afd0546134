package balancer

import (
	"net/netip"
	"slices"

	"github.com/kube-splice/kube-splice/service"
)

// scope is what a Balancer keeps for one service.Scope alone: who is eligible, and
// the policy with its state, so that each scope has a rotation of its own.
type scope struct {
	eligible []*endpoint // sorted by address
	policy   policy
}

// Eligible are the endpoints that each scope may give new connections to, in any order.
// A scope that is not in use has none.
type Eligible [service.Scopes][]service.Endpoint

// addresses returns those of endpoints, sorted and each once.
func addresses(endpoints []service.Endpoint) []netip.AddrPort {
	addrs := make([]netip.AddrPort, len(endpoints))
	for i, e := range endpoints {
		addrs[i] = e.Addr
	}
	slices.SortFunc(addrs, netip.AddrPort.Compare)
	return slices.Compact(addrs)
}

// setEligible makes addrs, sorted and each once, the eligible endpoints of each scope.
// An endpoint is given up when all scopes have been looked at: one that goes from one
// scope to the other stays.
func (b *Balancer) setEligible(addrs [service.Scopes][]netip.AddrPort) {
	var left []*endpoint
	for in := range service.Scope(service.Scopes) {
		left = append(left, b.setScope(in, addrs[in])...)
	}
	for _, e := range left {
		if !e.isEligible() {
			b.affinity.forget(e)
			b.release(e)
		}
	}
}

// setScope makes addrs the eligible endpoints of one scope and returns those that were
// eligible in it before a change.
func (b *Balancer) setScope(in service.Scope, addrs []netip.AddrPort) (before []*endpoint) {
	s := &b.scopes[in]
	if slices.EqualFunc(s.eligible, addrs, func(e *endpoint, addr netip.AddrPort) bool { return e.addr == addr }) {
		return nil
	}
	before = s.eligible
	for _, e := range before {
		e.eligible[in] = false
	}
	s.eligible = make([]*endpoint, len(addrs))
	for i, addr := range addrs {
		e := b.known[addr]
		if e == nil {
			e = &endpoint{addr: addr, hash: hash(addr.Addr(), addr.Port())}
			b.known[addr] = e
		}
		e.eligible[in] = true
		s.eligible[i] = e
	}
	return before
}
