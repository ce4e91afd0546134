package source

import (
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-splice/kube-splice/service"
)

// backend is an endpoint, and whom its slice would have it serve.
type backend struct {
	service.Endpoint
	hints discoveryv1.EndpointHints
}

// place is where this node is; what is empty is not known.
type place struct{ node, zone string }

// isHere reports whether an endpoint is on this node.
func (here place) isHere(e service.Endpoint) bool { return here.node != "" && e.Node == here.node }

// hint reads the hints of one kind: whether there are any, and whether one is for here.
type hint func(discoveryv1.EndpointHints) (given, forHere bool)

func (here place) nodeHint(h discoveryv1.EndpointHints) (given, forHere bool) {
	names := func(n discoveryv1.ForNode) bool { return n.Name == here.node }
	return len(h.ForNodes) > 0, slices.ContainsFunc(h.ForNodes, names)
}

func (here place) zoneHint(h discoveryv1.EndpointHints) (given, forHere bool) {
	names := func(z discoveryv1.ForZone) bool { return z.Name == here.zone }
	return len(h.ForZones) > 0, slices.ContainsFunc(h.ForZones, names)
}

// reserve marks the ready endpoints of a Service port that topology hints keep for
// clients elsewhere: the rule of kube-proxy 1.37. Hints for nodes go before those for
// zones. A kind of hint is heeded only if every ready endpoint has one, since endpoints
// without would serve nobody, and if one is for here, since else nobody would serve us.
func (here place) reserve(all []backend) {
	for _, read := range []hint{here.nodeHint, here.zoneHint} {
		if !heeded(all, read) {
			continue
		}
		for i, b := range all {
			_, forHere := read(b.hints)
			all[i].Reserved = b.Ready && !forHere
		}
		return
	}
}

func heeded(all []backend, read hint) bool {
	anyForHere := false
	for _, b := range all {
		if !b.Ready {
			continue
		}
		given, forHere := read(b.hints)
		if !given {
			return false
		}
		anyForHere = anyForHere || forHere
	}
	return anyForHere
}
