package service

import (
	"net/netip"
	"slices"
)

// Snapshot is everything the proxy has to know at one moment. It is immutable.
// A Port that did not change between two Snapshots of one source keeps its
// pointer, so telling what changed is a comparison of pointers.
type Snapshot struct {
	Ports []*Port // sorted by Name, each Name once
	// NodeIPs are this node's own addresses as its Node object gives them, the
	// primary one of each family first; empty when no Node object is known.
	NodeIPs []netip.Addr
	// PodCIDRs are where this node's pods have their addresses, as its Node object
	// gives them; empty when it does not say.
	PodCIDRs []netip.Prefix
	Node     Node
	// Triggers are the dated changes of endpoints that came with this Snapshot.
	Triggers []Trigger
}

// Node is what this node's Node object says of its place and its fitness for traffic.
type Node struct {
	Known    bool // there is such an object
	Deleting bool // it has a deletionTimestamp
	Tainted  bool // ToBeDeletedByClusterAutoscaler
	// Zone is its label topology.kubernetes.io/zone.
	Zone string
}

// Port returns the port of that name, or nil.
func (s *Snapshot) Port(name Name) *Port {
	i, found := slices.BinarySearchFunc(s.Ports, name, func(p *Port, n Name) int { return p.Name.Compare(n) })
	if !found {
		return nil
	}
	return s.Ports[i]
}
