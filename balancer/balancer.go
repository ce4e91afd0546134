package balancer

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kube-splice/kube-splice/service"
)

// defaultMaxAffinity bounds the memory of one port's affinity records to about
// 20 MB.
const defaultMaxAffinity = 100_000

// Config is the configuration of one Service port's Balancer; its zero value is
// the default.
type Config struct {
	// MaxAffinity is how many affinity records are kept at most; the least
	// recently used one makes room for a new one. 0 means 100,000.
	MaxAffinity int
	// Evicted, if not nil, also counts the records that made room. Balancers may
	// share it.
	Evicted *atomic.Uint64
}

// Balancer hands out the endpoints of one Service port, to the clients of every
// scope. All methods may be called from any goroutine.
type Balancer struct {
	mu       sync.Mutex
	closed   bool
	name     string // of the policy; canonical
	scopes   [service.Scopes]scope
	affinity affinity
	turn     uint64 // counts the calls of Pick

	// known holds the endpoints eligible in any scope and those that still have
	// connections, so that an endpoint that leaves and returns finds its count again.
	known map[netip.AddrPort]*endpoint
}

// New returns a Balancer that has no endpoints yet and balances by [Default].
// The caller closes it.
func New(config Config) *Balancer {
	b := &Balancer{known: make(map[netip.AddrPort]*endpoint)}
	b.setPolicy(Default)
	b.affinity.max = config.MaxAffinity
	if b.affinity.max <= 0 {
		b.affinity.max = defaultMaxAffinity
	}
	b.affinity.allEvicted = config.Evicted
	b.affinity.wake = b.expireAffinity
	return b
}

// Update replaces what the Balancer knows: the policy by name or alias (an
// unknown name means [Default]), the ClientIP affinity timeout (0 means no
// affinity) and the eligible endpoints. The slices are not kept.
//
// What did not change is left alone: counts, the places in the rotations, and the
// affinity records of endpoints that stay eligible in any scope. Records of the others
// leave at once; those that stay are judged by the new timeout, from their last use.
func (b *Balancer) Update(policy string, affinity time.Duration, eligible Eligible) {
	var sorted [service.Scopes][]netip.AddrPort
	for in, endpoints := range eligible {
		sorted[in] = addresses(endpoints)
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.setPolicy(policy)
	b.setEligible(sorted)
	b.affinity.setTimeout(affinity, time.Now())
}

// Close drops the endpoints and the affinity records and stops the timer that
// expires them. Picks that are still out may report afterwards; Pick finds no
// endpoint any more and Update does nothing. Close may be called again.
func (b *Balancer) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.setEligible([service.Scopes][]netip.AddrPort{})
}

// setPolicy changes the policy. A policy that stays keeps its state.
func (b *Balancer) setPolicy(name string) {
	p, ok := find(name)
	if !ok {
		p, _ = find(Default)
	}
	if b.name == p.name {
		return
	}
	b.name = p.name
	for in := range b.scopes {
		b.scopes[in].policy = p.create()
	}
}

// release frees an endpoint that is neither eligible nor in use.
func (b *Balancer) release(e *endpoint) {
	if !e.isEligible() && e.active == 0 {
		delete(b.known, e.addr)
	}
}

// expireAffinity is what the affinity timer runs, in a goroutine of its own.
func (b *Balancer) expireAffinity() {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.affinity.expire(now)
	b.affinity.rearm(now)
}
