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

	// Internal and External are the traffic policies: the endpoints for clients that
	// come by the clusterIP, and for clients outside that come by another address.
	Internal, External Scope
	// SourceRanges are whom the load-balancer addresses admit, and NodePortRanges whom the
	// node port does: of an IP family without a range, everybody. Those of the other
	// family are there only with Policy.AcceptProxy, as a PROXY header may name clients of
	// it.
	SourceRanges, NodePortRanges []netip.Prefix

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
	// Preserve says for which clients endpoints see the client's address.
	Preserve Preserve
	// AcceptProxy demands a PROXY header of the peers that the proxy trusts. Of TCP.
	AcceptProxy bool
	// SendProxy is the version, 1 or 2, of the PROXY header that backends are sent; 0: none.
	// Of TCP.
	SendProxy uint8
	// VPCEndpoint is the endpoint's ID that a header of version 2 says as Amazon's load
	// balancers do; empty: none.
	VPCEndpoint string
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
	Local       bool   // it is on this node
	// Reserved says that topology hints keep it for clients of other nodes or zones.
	Reserved bool
}

// Eligible returns the endpoints of that scope that may be given new connections: the
// ready ones, or, when none is, those that still serve while they terminate (KEP-1669),
// so that the last pods of a rolling update or of a drained node go on answering until
// others are ready. Topology hints narrow the ready endpoints of the scope Cluster, and
// nothing else. The result is the caller's.
func (p *Port) Eligible(scope Scope) []Endpoint {
	if eligible := p.endpoints(scope.first); len(eligible) > 0 {
		return eligible
	}
	return p.endpoints(scope.second)
}

// HasEligible reports whether Eligible would return any, and makes no list.
func (p *Port) HasEligible(scope Scope) bool {
	return slices.ContainsFunc(p.Endpoints, func(e Endpoint) bool { return scope.first(e) || scope.second(e) })
}

// first reports whether an endpoint is among those of s to be given connections first.
func (s Scope) first(e Endpoint) bool {
	return e.Ready && (s == Local && e.Local || s == Cluster && !e.Reserved)
}

// second reports whether it may be given connections when there is none to be first.
func (s Scope) second(e Endpoint) bool {
	return e.Serving && e.Terminating && (s == Cluster || e.Local)
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
		p.Internal == q.Internal && p.External == q.External &&
		slices.Equal(p.SourceRanges, q.SourceRanges) &&
		slices.Equal(p.NodePortRanges, q.NodePortRanges) &&
		slices.Equal(p.ExternalIPs, q.ExternalIPs) &&
		slices.Equal(p.LoadBalancerIPs, q.LoadBalancerIPs) &&
		slices.Equal(p.Endpoints, q.Endpoints)
}
