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
func (p *Port) Portals() []Portal {
	portals := make([]Portal, 0, 2+len(p.LoadBalancerIPs)+len(p.ExternalIPs))
	portals = append(portals, Portal{ClusterIP, p.ClusterIP, p.Number})
	for _, ip := range p.LoadBalancerIPs {
		portals = append(portals, Portal{LoadBalancer, ip, p.Number})
	}
	for _, ip := range p.ExternalIPs {
		portals = append(portals, Portal{ExternalIP, ip, p.Number})
	}
	if p.NodePort != 0 {
		portals = append(portals, Portal{NodePort, netip.Addr{}, p.NodePort})
	}
	return portals
}
