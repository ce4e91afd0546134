package balancer

import "net/netip"

// leastConnections chooses the endpoint with the fewest open connections of this
// node. Equal ones take turns, so that clients that come one after another,
// each finding every endpoint idle, still spread.
type leastConnections struct{ rotation rotation }

func (p *leastConnections) choose(c candidates, _ netip.Addr) *endpoint {
	return p.rotation.least(c, func(e *endpoint) float64 { return float64(e.active) })
}
