package source

import (
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-splice/kube-splice/service"
)

// Build turns API objects into a Snapshot. A Port equal to the one of that name
// in prev is that one, by pointer; if nothing at all changed, prev itself is
// returned. prev may be nil.
//
// The objects are expected as an API server gives them: defaults filled in. They
// need not be valid: what cannot be served is left out and said in a Notice. Services
// that are not for us by design (headless, ExternalName, or labelled for another proxy)
// are left out silently, with their slices.
func Build(prev *service.Snapshot, in Objects, o Options) (*service.Snapshot, []Notice) {
	var said notices
	slicesOf := groupSlices(in, &said)
	var ports []*service.Port
	for _, svc := range in.Services {
		built, about := buildService(svc, slicesOf[keyOf(svc)], o, zoneOf(in.Node))
		ports = append(ports, built...)
		said = append(said, about...)
	}
	slices.SortStableFunc(ports, func(p, q *service.Port) int { return p.Name.Compare(q.Name) })
	ports = slices.CompactFunc(ports, func(p, q *service.Port) bool { return p.Name == q.Name })
	ports = settleConflicts(ports, &said)
	next := &service.Snapshot{Ports: ports}
	describeNode(next, in.Node, &said)
	return reuse(prev, next), said
}

// key names a Service, or another object of one kind.
type key struct{ namespace, name string }

func keyOf(o metav1.Object) key { return key{o.GetNamespace(), o.GetName()} }

// groupSlices returns the slices of each Service. A Service without any has its
// Endpoints object mirrored instead.
func groupSlices(in Objects, said *notices) map[key][]*discoveryv1.EndpointSlice {
	grouped := make(map[key][]*discoveryv1.EndpointSlice, len(in.Services))
	for _, svc := range in.Services {
		grouped[keyOf(svc)] = nil
	}
	for _, slice := range in.Slices {
		name := slice.Labels[discoveryv1.LabelServiceName]
		if name == "" {
			said.about(referenceSlice(slice))("belongs to no Service and is ignored: give it the label %s", discoveryv1.LabelServiceName)
			continue
		}
		k := key{slice.Namespace, name}
		if _, known := grouped[k]; !known {
			said.about(referenceSlice(slice))("is of %s and is ignored: there is no Service of that name here", reference("Service", k.namespace, name))
			continue
		}
		grouped[k] = append(grouped[k], slice)
	}
	for _, e := range in.Endpoints {
		k := key{e.Namespace, e.Name}
		its, known := grouped[k]
		if !known {
			said.about(reference(kindEndpoints, k.namespace, k.name))("is ignored: there is no Service of that name here")
		} else if len(its) == 0 {
			grouped[k] = mirror(e)
		}
	}
	return grouped
}

// reuse replaces what is equal in next by what prev already has.
func reuse(prev, next *service.Snapshot) *service.Snapshot {
	if prev == nil {
		return next
	}
	same := len(prev.Ports) == len(next.Ports) && sameNode(prev, next)
	for i, p := range next.Ports {
		if old := prev.Port(p.Name); old != nil && old.Equal(p) {
			next.Ports[i] = old
		} else {
			same = false
		}
	}
	if same {
		return prev
	}
	return next
}
