package service

import (
	"net/netip"
	"slices"
	"time"
)

// Port is one Service port in one IP family: the addresses it is reached by, how
// its connections are to be treated, and the endpoints behind it. Immutable once
// in a Snapshot.
type Port struct {
	Name   Name
	Number uint16 // spec.ports[].port

	ClusterIP       netip.Addr   // always valid, of the Name's family
	ExternalIPs     []netip.Addr // spec.externalIPs of this family, sorted
	LoadBalancerIPs []netip.Addr // status.loadBalancer.ingress[].ip of this family, sorted
	NodePort        uint16       // 0: none

	// HealthCheckNodePort is where load balancers ask whether this node has endpoints
	// of the Service; 0: nowhere.
	HealthCheckNodePort uint16

	Policy    Policy
	Endpoints []Endpoint // all known, eligible or not; sorted by address, each address once
}

// Policy says how the connections of a Service port are to be treated.
type Policy struct {
	// Balancer names the balancing policy; empty means the proxy's default.
	Balancer string
	// Affinity is sessionAffinityConfig.clientIP.timeoutSeconds; 0 means no
	// session affinity.
	Affinity time.Duration
	// IdleTimeout ends an open connection on which no byte moved for this long; 0
	// means never.
	IdleTimeout time.Duration
	// LogOff keeps this port's connections out of the connection log.
	LogOff bool
}

// Endpoint is one address behind a Service port with the conditions its
// EndpointSlice gave it (nil conditions already replaced by their meaning).
type Endpoint struct {
	Addr        netip.AddrPort
	Ready       bool
	Serving     bool
	Terminating bool
	Node        string // nodeName; empty when the slice does not say
	Zone        string // empty when the slice does not say
}

// Eligible returns the endpoints that may be given new connections: the ready ones,
// or, when none is, those that still serve while they terminate (KEP-1669), so that
// the last pods of a rolling update or of a drained node go on answering until others
// are ready. The result is the caller's.
//
// Traffic policies and topology hints narrow this choice; this is their place.
func (p *Port) Eligible() []Endpoint {
	ready := func(e Endpoint) bool { return e.Ready }
	if eligible := p.endpoints(ready); len(eligible) > 0 {
		return eligible
	}
	return p.endpoints(func(e Endpoint) bool { return e.Serving && e.Terminating })
}

func (p *Port) endpoints(wanted func(Endpoint) bool) []Endpoint {
	var found []Endpoint
	for _, e := range p.Endpoints {
		if wanted(e) {
			found = append(found, e)
		}
	}
	return found
}

// Equal reports whether p and q say the same, so that one may stand for the
// other in the next Snapshot.
func (p *Port) Equal(q *Port) bool {
	return p.Name == q.Name && p.Number == q.Number &&
		p.ClusterIP == q.ClusterIP && p.NodePort == q.NodePort &&
		p.HealthCheckNodePort == q.HealthCheckNodePort && p.Policy == q.Policy &&
		slices.Equal(p.ExternalIPs, q.ExternalIPs) &&
		slices.Equal(p.LoadBalancerIPs, q.LoadBalancerIPs) &&
		slices.Equal(p.Endpoints, q.Endpoints)
}
