package service

import "net/netip"

// Kind says which field of a Service a portal comes from. The historical rules
// treat each kind differently.
type Kind uint8

// The kinds of portal.
const (
	ClusterIP Kind = iota
	LoadBalancer
	ExternalIP
	NodePort
)

// String returns the kind as users write it: "clusterIP", "loadBalancer",
// "externalIP", "nodePort".
func (k Kind) String() string {
	return [...]string{"clusterIP", "loadBalancer", "externalIP", "nodePort"}[k]
}

// Portal is one address and port at which clients ask for a Service port. The
// word is the historical kube-proxy's.
type Portal struct {
	Kind   Kind
	Addr   netip.Addr // zero for NodePort: any address of the node
	Number uint16
	// Clients are those that this Portal is about. A portal that gives clients
	// inside and outside different endpoints is two Portals.
	Clients Clients
	Scope   Scope // the endpoints they get
}

// Binding leads a portal of a Service port to the listener that serves it: package
// proxy opens the listener, package redirect writes the rule.
type Binding struct {
	Name   Name
	Portal Portal
	// Listener is where the proxy listens. An unspecified address means that it
	// listens on every address of the node.
	Listener netip.AddrPort
}

// Portals returns every portal of p: clusterIP, load-balancer addresses,
// externalIPs, nodePort, in this order. The result is the caller's.
//
// The clusterIP follows the internal traffic policy. The others follow the external
// one, but only for clients outside: where the node and its pods can be told from
// these, they get the endpoints of the whole cluster, as in kube-proxy, since they
// would not pass a load balancer that knows where endpoints are.
func (p *Port) Portals() []Portal {
	portals := make([]Portal, 0, 2*(1+len(p.LoadBalancerIPs)+len(p.ExternalIPs)))
	portals = append(portals, Portal{Kind: ClusterIP, Addr: p.ClusterIP, Number: p.Number, Scope: p.Internal})
	external := func(kind Kind, addr netip.Addr, number uint16) {
		if p.External == Cluster {
			portals = append(portals, Portal{Kind: kind, Addr: addr, Number: number})
			return
		}
		portals = append(portals,
			Portal{Kind: kind, Addr: addr, Number: number, Clients: Inside, Scope: Cluster},
			Portal{Kind: kind, Addr: addr, Number: number, Clients: Outside, Scope: p.External})
	}
	for _, ip := range p.LoadBalancerIPs {
		external(LoadBalancer, ip, p.Number)
	}
	for _, ip := range p.ExternalIPs {
		external(ExternalIP, ip, p.Number)
	}
	if p.NodePort != 0 {
		external(NodePort, netip.Addr{}, p.NodePort)
	}
	return portals
}
