package source

import (
	"slices"

	"github.com/kube-splice/kube-splice/service"
)

// rivals finds the ports that want an address and port which another one wants
// too. Only they can lose any, so only they need to be settled.
type rivals struct {
	wanted    map[claim][]*service.Port
	contested map[claim]struct{} // those wanted by more than one port
}

func newRivals() *rivals {
	return &rivals{wanted: map[claim][]*service.Port{}, contested: map[claim]struct{}{}}
}

// add counts in what p wants.
func (r *rivals) add(p *service.Port) {
	for _, c := range claimsOf(p) {
		r.wanted[c] = append(r.wanted[c], p)
		if len(r.wanted[c]) > 1 {
			r.contested[c] = struct{}{}
		}
	}
}

// remove counts out what p, which was added, wants.
func (r *rivals) remove(p *service.Port) {
	for _, c := range claimsOf(p) {
		r.wanted[c] = slices.DeleteFunc(r.wanted[c], func(q *service.Port) bool { return q == p })
		if len(r.wanted[c]) < 2 {
			delete(r.contested, c)
		}
		if len(r.wanted[c]) == 0 {
			delete(r.wanted, c)
		}
	}
}

// ports returns the ports that have a rival, sorted by name.
func (r *rivals) ports() []*service.Port {
	var all []*service.Port
	for c := range r.contested {
		all = append(all, r.wanted[c]...)
	}
	slices.SortFunc(all, func(p, q *service.Port) int { return p.Name.Compare(q.Name) })
	return slices.Compact(all)
}

// claimsOf returns what p wants, each claim once, so that no port is its own rival: it
// may have an address as two kinds, or a portal for clients inside and one for outside.
func claimsOf(p *service.Port) []claim {
	var all []claim
	for _, portal := range p.Portals() {
		c := claim{portal.Addr, p.Name.Family, portal.Number, p.Name.Protocol}
		if !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}
