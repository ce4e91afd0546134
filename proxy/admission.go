package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"github.com/kube-splice/kube-splice/proxy/relay"
	"github.com/kube-splice/kube-splice/service"
)

// front is what a connection has to know of its Service port, worked out once a change
// and not once a connection. It is immutable.
type front struct {
	port      *service.Port
	portals   []service.Portal // port.Portals()
	balanced  *ranges          // whom the load-balancer addresses admit
	nodePorts *ranges          // whom the node port admits
	nodeIPs   []netip.Addr     // that balanced was made with
}

func newFront(port *service.Port, nodeIPs []netip.Addr) *front {
	return &front{
		port: port, portals: port.Portals(), nodeIPs: nodeIPs,
		balanced: balancedRanges(port, nodeIPs), nodePorts: newRanges(port.NodePortRanges),
	}
}

// ranges are the addresses that a kind of portal admits: of an IP family of which there is
// none, all. Nil admits everybody.
type ranges struct {
	trie     bart.Lite
	families map[service.Family]bool // of which there is one
}

func newRanges(prefixes []netip.Prefix) *ranges {
	if len(prefixes) == 0 {
		return nil
	}
	r := &ranges{families: map[service.Family]bool{}}
	for _, prefix := range prefixes {
		r.trie.Insert(prefix)
		r.families[service.FamilyOf(prefix.Addr())] = true
	}
	return r
}

func (r *ranges) admit(client netip.Addr) bool {
	return r == nil || !r.families[service.FamilyOf(client)] || r.trie.Contains(client)
}

// uses reports whether a portal leads to the listener of that scope.
func (f *front) uses(scope service.Scope) bool { return usesScope(f.portals, scope) }

func usesScope(portals []service.Portal, scope service.Scope) bool {
	return slices.ContainsFunc(portals, func(portal service.Portal) bool { return portal.Scope == scope })
}

// balancedRanges returns whom the load-balancer addresses of port admit.
//
// A node whose own address is in a range may also come from a load-balancer address:
// where such an address is put on the node itself, the node's programs ask with it as
// their source (as kube-proxy).
func balancedRanges(port *service.Port, nodeIPs []netip.Addr) *ranges {
	r := newRanges(port.SourceRanges)
	if r == nil || len(port.LoadBalancerIPs) == 0 {
		return nil
	}
	admitsNode := func(ip netip.Addr) bool {
		return service.FamilyOf(ip) == port.Name.Family && r.trie.Contains(ip.Unmap())
	}
	if slices.ContainsFunc(nodeIPs, admitsNode) {
		for _, ip := range port.LoadBalancerIPs {
			r.trie.Insert(netip.PrefixFrom(ip, ip.BitLen()))
		}
	}
	return r
}

var (
	// errDirect refuses a client that found a listener's port by itself: it would get
	// round every rule that guards the Service's addresses.
	errDirect = errors.New("not led here by a rule of this Service")
	// errDenied refuses a client by its address.
	errDenied         = errors.New("not in the source ranges")
	errDeniedBalanced = fmt.Errorf("%w of the load-balancer address", errDenied)
	errDeniedNodePort = fmt.Errorf("%w of the node port", errDenied)
)

// locate finds out where the client wanted to go.
func (c *connection) locate(fd int) (err error) {
	if c.listener.proxy.cfg.Direct {
		c.original = relay.LocalAddr(fd)
		return nil
	}
	if c.original, err = originalDestination(fd, service.FamilyOf(c.client.Addr())); err != nil {
		return fmt.Errorf("%w: %w", errDirect, err)
	}
	return nil
}

// admit finds out which endpoints the client gets, and whether this listener's Service port
// serves what it asked for, and serves it to this client: to any, as long as its PROXY
// header has not said who it is.
//
// Where one address is a load balancer's and an externalIP too, it is guarded: the
// portals of load balancers come first.
func (c *connection) admit() error {
	if c.listener.proxy.cfg.Direct {
		c.scope = c.front.directScope(c.listener.scope)
		return nil
	}
	client := c.client.Addr()
	if c.search.heading {
		client = netip.Addr{}
	}
	portal, err := c.front.admit(client, c.original, c.listener.scope)
	c.scope, c.preserve = portal.Scope, c.front.port.Preserves(portal)
	return err
}

// directScope is the scope that a client of a listener of that scope gets with
// Config.Direct: another one if no portal uses it any more.
func (f *front) directScope(scope service.Scope) service.Scope {
	if !f.uses(scope) {
		return f.portals[0].Scope
	}
	return scope
}

// admit returns the portal by which a client came that asked for original and came to a
// listener of that scope, or why it is not served: the scope is the listener's then. A
// zero client is one that nobody knows yet.
func (f *front) admit(client netip.Addr, original netip.AddrPort, scope service.Scope) (service.Portal, error) {
	refused := service.Portal{Scope: scope}
	portal, ok := f.portal(original, scope)
	switch {
	case !ok:
		return refused, errDirect
	case !client.IsValid():
	case portal.Kind == service.LoadBalancer && !f.balanced.admit(client):
		return refused, errDeniedBalanced
	case portal.Kind == service.NodePort && !f.nodePorts.admit(client):
		return refused, errDeniedNodePort
	}
	return portal, nil
}

// portal returns the portal that a client of a listener of that scope asked for. While
// rules do not follow an edited traffic policy yet, clients come to a listener that
// has no such portal any more; they get the endpoints of the portal as it is now.
func (f *front) portal(asked netip.AddrPort, scope service.Scope) (found service.Portal, ok bool) {
	for _, portal := range f.portals {
		if portal.Number != asked.Port() || portal.Kind != service.NodePort && portal.Addr != asked.Addr() {
			continue
		}
		if portal.Scope == scope {
			return portal, true
		}
		if !ok {
			found, ok = portal, true
		}
	}
	return found, ok
}

// notAdmitted counts a client that was not admitted and returns how that is called.
func (p *Proxy) notAdmitted(err error) Close {
	switch {
	case errors.Is(err, errDenied):
		p.counters.denied.Add(1)
		return Denied
	case errors.Is(err, errDirect):
		p.counters.refusedDirect.Add(1)
		return RefusedDirect
	default: // it could not be found out
		return Internal
	}
}
