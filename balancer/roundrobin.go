package balancer

import "net/netip"

// roundRobin gives each endpoint its turn, in the order of their addresses.
type roundRobin struct{ rotation rotation }

func (p *roundRobin) choose(c candidates, _ netip.Addr) *endpoint {
	i := p.rotation.start(c.all)
	for c.tried(c.all[i]) {
		i = (i + 1) % len(c.all)
	}
	p.rotation.passed(c.all, i)
	return c.all[i]
}
