package balancer

import (
	"math/rand/v2"
	"net/netip"
)

// random chooses each endpoint with the same probability, as the kernel modes of
// kube-proxy do.
type random struct{}

func (random) choose(c candidates, _ netip.Addr) *endpoint {
	n := rand.IntN(c.left)
	if c.left == len(c.all) {
		return c.all[n]
	}
	for _, e := range c.all {
		if c.tried(e) {
			continue
		}
		if n == 0 {
			return e
		}
		n--
	}
	panic("balancer: fewer candidates than were counted")
}
