package balancer

import (
	"net/netip"

	"github.com/kube-splice/kube-splice/service"
)

// endpoint is what a Balancer knows of one address, whatever the scope. It lives as
// long as the address is eligible or has connections.
type endpoint struct {
	addr     netip.AddrPort
	eligible [service.Scopes]bool
	active   int // Picks that neither failed nor ended
	latency  latency
	hash     uint64 // of addr, for source-hash
	records  ring   // the affinity records that point here
	triedIn  uint64 // the last turn in which the caller had tried it already
}

// isEligible reports whether e may be given connections in any scope.
func (e *endpoint) isEligible() bool { return e.eligible != [service.Scopes]bool{} }

// candidates are the endpoints that a policy chooses from in one turn. Marking
// the tried ones, once a turn, keeps a choice linear and free of allocations
// however many were tried. An endpoint ejected for its health would be left out
// here too.
type candidates struct {
	all  []*endpoint // eligible in the scope, sorted by address
	turn uint64
	left int // how many of all were not tried; a policy is asked only if > 0
}

func (c candidates) tried(e *endpoint) bool { return e.triedIn == c.turn }
