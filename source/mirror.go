package source

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-splice/kube-splice/service"
)

// kindEndpoints marks a mirrored slice, so that notices name what the user wrote.
const kindEndpoints = "Endpoints"

// referenceSlice names a slice, or the Endpoints object it mirrors, in a notice.
func referenceSlice(slice *discoveryv1.EndpointSlice) string {
	return reference(cmp.Or(slice.Kind, "EndpointSlice"), slice.Namespace, slice.Name)
}

// mirror turns an Endpoints object into the slices that the control plane's
// mirroring controller would make of it: one for each subset and family.
//
//lint:ignore SA1019 old manifests still hold Endpoints
func mirror(e *corev1.Endpoints) []*discoveryv1.EndpointSlice {
	var mirrored []*discoveryv1.EndpointSlice
	for _, subset := range e.Subsets {
		for _, family := range []service.Family{service.IPv4, service.IPv6} {
			endpoints := append(
				mirrorAddresses(subset.Addresses, family, true),
				mirrorAddresses(subset.NotReadyAddresses, family, false)...)
			if len(endpoints) == 0 {
				continue
			}
			mirrored = append(mirrored, &discoveryv1.EndpointSlice{
				TypeMeta:    metav1.TypeMeta{Kind: kindEndpoints},
				ObjectMeta:  metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name},
				AddressType: discoveryv1.AddressType(family.String()),
				Ports:       mirrorPorts(subset.Ports),
				Endpoints:   endpoints,
			})
		}
	}
	return mirrored
}

// mirrorAddresses returns the addresses of one family as endpoints. What is no
// address at all goes with IPv4, to be reported once by the reader of the slice.
func mirrorAddresses(list []corev1.EndpointAddress, family service.Family, ready bool) []discoveryv1.Endpoint {
	var endpoints []discoveryv1.Endpoint
	for _, a := range list {
		addr, err := parseAddr(a.IP)
		is := service.IPv4
		if err == nil {
			is = service.FamilyOf(addr)
		}
		if is != family {
			continue
		}
		endpoints = append(endpoints, discoveryv1.Endpoint{
			Addresses:  []string{a.IP},
			NodeName:   a.NodeName,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready},
		})
	}
	return endpoints
}

func mirrorPorts(list []corev1.EndpointPort) []discoveryv1.EndpointPort {
	ports := make([]discoveryv1.EndpointPort, 0, len(list))
	for _, p := range list {
		ports = append(ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.Port})
	}
	return ports
}
