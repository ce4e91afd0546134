package source

import (
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Objects from an API server are kept for as long as they live, so what nobody
// here reads is taken off them first: most of their size.

func trimService(svc *corev1.Service) {
	trimMeta(&svc.ObjectMeta, labelProxyName)
	svc.Spec.Selector = nil
	svc.Status.Conditions = nil
}

// trimSlice keeps of an endpoint its first address, which is the one the API means,
// the conditions, where it is, and the topology hints.
func trimSlice(slice *discoveryv1.EndpointSlice) {
	trimMeta(&slice.ObjectMeta, discoveryv1.LabelServiceName)
	slice.UID = ""
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		e.Addresses = e.Addresses[:min(1, len(e.Addresses))]
		e.Hostname, e.TargetRef, e.DeprecatedTopology = nil, nil, nil
		e.NodeName, e.Zone = shared(e.NodeName), shared(e.Zone)
		shareHints(e.Hints)
	}
}

// shareHints makes equal names in hints one text.
func shareHints(hints *discoveryv1.EndpointHints) {
	if hints == nil {
		return
	}
	for i, z := range hints.ForZones {
		hints.ForZones[i].Name = unique.Make(z.Name).Value()
	}
	for i, n := range hints.ForNodes {
		hints.ForNodes[i].Name = unique.Make(n.Name).Value()
	}
}

func trimNode(node *corev1.Node) {
	trimMeta(&node.ObjectMeta, corev1.LabelTopologyZone)
	node.Spec = corev1.NodeSpec{PodCIDR: node.Spec.PodCIDR, PodCIDRs: node.Spec.PodCIDRs, Taints: node.Spec.Taints}
	node.Status = corev1.NodeStatus{Addresses: node.Status.Addresses}
}

// trimMeta keeps of the labels only those named, and of the annotations ours and
// the one that says when the endpoints changed.
func trimMeta(meta *metav1.ObjectMeta, labels ...string) {
	meta.Labels = only(meta.Labels, func(name string) bool { return slices.Contains(labels, name) })
	meta.Annotations = only(meta.Annotations, func(name string) bool {
		return name == corev1.EndpointsLastChangeTriggerTime || strings.HasPrefix(name, annotationPrefix)
	})
	meta.ManagedFields, meta.OwnerReferences, meta.Finalizers = nil, nil, nil
}

// only returns the entries whose name is kept, in a map of just that size.
func only(all map[string]string, kept func(name string) bool) map[string]string {
	var some map[string]string
	for name, value := range all {
		if kept(name) {
			if some == nil {
				some = map[string]string{}
			}
			some[name] = value
		}
	}
	return some
}

// shared returns s with a text that all equal ones share: thousands of endpoints
// are on few nodes.
func shared(s *string) *string {
	if s == nil {
		return nil
	}
	return new(unique.Make(*s).Value())
}
