package main

import "github.com/kube-splice/kube-splice/service"

// withoutLocal counts the Service ports of a family whose internal or external traffic
// policy is Local and which have endpoints, but none on this node: their clients of
// that kind are refused here.
type withoutLocal struct{ internal, external int }

func countWithoutLocal(snap *service.Snapshot) map[service.Family]withoutLocal {
	counts := make(map[service.Family]withoutLocal, len(families))
	for _, p := range snap.Ports {
		if p.Internal != service.Local && p.External != service.Local || !onlyElsewhere(p) {
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

// onlyElsewhere reports whether a Service port has endpoints, but none on this node.
// It asks for what may be eligible in some scope, without making lists of it.
func onlyElsewhere(p *service.Port) bool {
	elsewhere := false
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		if !e.Ready && !(e.Serving && e.Terminating) {
			continue
		}
		if e.Local {
			return false
		}
		elsewhere = true
	}
	return elsewhere
}
