package balancer

import (
	"net/netip"
	"slices"
)

// Stats is the state of a Balancer at one moment.
type Stats struct {
	Policy          string          // canonical name
	Endpoints       []EndpointStats // sorted by address
	AffinityRecords int
	AffinityEvicted uint64 // records that made room for newer ones, since New
}

// EndpointStats is the state of one endpoint.
type EndpointStats struct {
	Addr netip.AddrPort
	// Eligible tells that some scope may give it connections; false for an endpoint that
	// left while it had some.
	Eligible bool
	Active   int // connections, those being dialled included
}

// Stats returns the eligible endpoints and those that still have connections,
// and the numbers of affinity. The result is the caller's.
func (b *Balancer) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Stats{
		Policy:          b.name,
		Endpoints:       make([]EndpointStats, 0, len(b.known)),
		AffinityRecords: len(b.affinity.records),
		AffinityEvicted: b.affinity.evicted,
	}
	for _, e := range b.known {
		s.Endpoints = append(s.Endpoints, EndpointStats{Addr: e.addr, Eligible: e.isEligible(), Active: e.active})
	}
	slices.SortFunc(s.Endpoints, func(x, y EndpointStats) int { return x.Addr.Compare(y.Addr) })
	return s
}
