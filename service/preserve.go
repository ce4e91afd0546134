package service

import (
	"net/netip"
	"slices"
)

// Preserve says for which clients of a Service port endpoints on this node see the client's
// own address as the source of a connection, where that is possible. To others, and
// elsewhere, the node connects.
type Preserve uint8

// Whose addresses are preserved.
const (
	// PreserveOutside is for clients outside whom the external traffic policy Local
	// gives endpoints on this node, which is what it is there for; for none of a Service
	// whose backends are sent PROXY headers, as they may take these from nodes only.
	PreserveOutside Preserve = iota
	// PreserveAll is for every client, by whichever portal.
	PreserveAll
	// PreserveNone is for nobody.
	PreserveNone
)

// Preserves reports whether an address of clients that come by that portal is to be
// preserved.
func (p *Port) Preserves(portal Portal) bool {
	switch p.Policy.Preserve {
	case PreserveAll:
		return true
	case PreserveOutside:
		return portal.Clients == Outside && portal.Scope == Local && !p.Announces()
	}
	return false
}

// MayPreserve reports whether there may be clients whose addresses are to be preserved.
func (p *Port) MayPreserve() bool {
	return p.Policy.Preserve == PreserveAll || p.Policy.Preserve == PreserveOutside && p.External == Local && !p.Announces()
}

// Announces reports whether backends are sent PROXY headers.
func (p *Port) Announces() bool { return p.Name.Protocol == TCP && p.Policy.SendProxy > 0 }

// IsLocal reports whether an address is that of an endpoint on this node.
func (p *Port) IsLocal(endpoint netip.AddrPort) bool {
	i, found := slices.BinarySearchFunc(p.Endpoints, endpoint, func(e Endpoint, addr netip.AddrPort) int { return e.Addr.Compare(addr) })
	return found && p.Endpoints[i].Local
}
