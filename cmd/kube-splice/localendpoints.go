package main

import "github.com/kube-splice/kube-splice/service"

// withoutLocal counts the Service ports of a family whose internal or external traffic
// policy is Local and which have endpoints, but none on this node: their clients of
// that kind are refused here.
type withoutLocal struct{ internal, external int }

func countWithoutLocal(snap *service.Snapshot) map[service.Family]withoutLocal {
	counts := make(map[service.Family]withoutLocal, len(families))
	for _, p := range snap.Ports {
		local := p.Internal == service.Local || p.External == service.Local
		if !local || p.HasEligible(service.Local) || !p.HasEligible(service.Cluster) {
			continue
		}
		c := counts[p.Name.Family]
		if p.Internal == service.Local {
			c.internal++
		}
		if p.External == service.Local {
			c.external++
		}
		counts[p.Name.Family] = c
	}
	return counts
}
