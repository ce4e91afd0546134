package balancer

import (
	"math/rand/v2"
	"net/netip"
	"slices"
)

// rotation is a place in the sorted list of eligible endpoints. It remembers the
// address whose turn is next rather than an index, so the place survives changes
// of the list: others may come and go, and if the next one itself has gone, its
// successor is next.
//
// The place is random when it is first needed, not when the first endpoint
// appears: the nodes of a cluster see endpoints appear one by one in the same
// order, and would otherwise all start with the same one.
type rotation struct {
	next  netip.AddrPort // not valid: not started
	index int            // where next was; looked up again when it is not there
}

// start returns the index in all, which is not empty, of the endpoint whose turn
// is next.
func (r *rotation) start(all []*endpoint) int {
	switch {
	case !r.next.IsValid():
		r.index = rand.IntN(len(all))
	case r.index >= len(all) || all[r.index].addr != r.next:
		i, _ := slices.BinarySearchFunc(all, r.next, func(e *endpoint, next netip.AddrPort) int {
			return e.addr.Compare(next)
		})
		r.index = i % len(all)
	}
	return r.index
}

// passed moves the place behind the endpoint at index i, which was chosen.
func (r *rotation) passed(all []*endpoint, i int) {
	r.index = (i + 1) % len(all)
	r.next = all[r.index].addr
}

// least chooses the candidate of the least cost, of equal ones the first in
// rotation, so that equals take turns.
func (r *rotation) least(c candidates, cost func(*endpoint) float64) *endpoint {
	start, best, lowest := r.start(c.all), -1, 0.0
	for n := range c.all {
		i := start + n
		if i >= len(c.all) {
			i -= len(c.all)
		}
		if c.tried(c.all[i]) {
			continue
		}
		if v := cost(c.all[i]); best < 0 || v < lowest {
			best, lowest = i, v
		}
	}
	r.passed(c.all, best)
	return c.all[best]
}
