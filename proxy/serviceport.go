package proxy

import (
	"iter"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/service"
)

// servicePort is what the listeners of one Service port share: a Balancer, so that
// affinity and open connections are known whichever way a client came, and the
// counts, which outlive a listener.
type servicePort struct {
	name     service.Name
	balancer *balancer.Balancer
	front    atomic.Pointer[front]        // set before the first listener is opened
	eligible [service.Scopes]atomic.Int64 // endpoints that may be given connections
	tally    tally

	// The owner's.
	listeners [service.Scopes]*listener // nil: none
	leaving   []*listener               // replaced; closed when no rule leads to them
	wanted    bool
	left      bool // it is gone from the Snapshot
}

func (p *Proxy) newServicePort(name service.Name) *servicePort {
	return &servicePort{name: name, balancer: balancer.New(balancer.Config{Evicted: &p.counters.evicted})}
}

// update makes s serve port: the balancer gets the eligible endpoints of each scope in
// use, and connections see the new front. It reports whether there was a change; an
// unchanged port costs nothing.
//
// No client may find itself between two traffic policies with nobody to go to. So a
// scope has its endpoints before a front has it, and keeps them while it has a listener.
func (s *servicePort) update(port *service.Port, nodeIPs []netip.Addr, defaultBalancer string) (changed bool) {
	if f := s.front.Load(); f != nil && !s.left && f.port == port && (f.balanced == nil || slices.Equal(f.nodeIPs, nodeIPs)) {
		return false
	}
	s.left = false
	f := newFront(port, nodeIPs)
	policy := port.Policy.Balancer
	if policy == "" {
		policy = defaultBalancer
	}
	var eligible balancer.Eligible
	for scope := range service.Scope(service.Scopes) {
		if f.uses(scope) || s.listeners[scope] != nil {
			eligible[scope] = port.Eligible(scope)
		}
	}
	s.balancer.Update(policy, port.Policy.Affinity, eligible)
	s.countEligible(eligible)
	s.front.Store(f)
	s.retainFlows(port.Endpoints)
	return true
}

// leave gives no more connections to a Service port that is gone, until its rules are
// gone too and its listeners can be closed.
func (s *servicePort) leave() {
	s.left = true
	s.balancer.Update("", 0, balancer.Eligible{})
	s.retainFlows(nil)
	s.countEligible(balancer.Eligible{})
}

func (s *servicePort) countEligible(eligible balancer.Eligible) {
	for scope, endpoints := range eligible {
		s.eligible[scope].Store(int64(len(endpoints)))
	}
}

// endpoints returns how many endpoints the clients get that get the most.
func (s *servicePort) endpoints() (most int64) {
	f := s.front.Load()
	for scope := range s.eligible {
		if f.uses(service.Scope(scope)) {
			most = max(most, s.eligible[scope].Load())
		}
	}
	return most
}

// park makes each listener refuse or serve, as there are endpoints for it. One whose
// scope is not in use any more serves while any other would, until it is closed: rules
// still lead to it.
func (s *servicePort) park() error {
	for l := range s.open() {
		eligible := s.eligible[l.scope].Load()
		if !s.front.Load().uses(l.scope) {
			eligible = s.endpoints()
		}
		if err := l.setParked(eligible == 0); err != nil {
			return err
		}
	}
	return nil
}

// open ranges over the listeners of s.
func (s *servicePort) open() iter.Seq[*listener] {
	return func(yield func(*listener) bool) {
		for _, l := range s.listeners {
			if l != nil && !yield(l) {
				return
			}
		}
		for _, l := range s.leaving {
			if !yield(l) {
				return
			}
		}
	}
}
