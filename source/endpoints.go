package source

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-splice/kube-splice/service"
)

// backends is what one slice says: its endpoints answer on each of its ports.
type backends struct {
	family    service.Family
	ports     []backendPort
	endpoints []backend // Addr has port 0
}

// backendPort is a port of a slice; name and protocol join it to a Service port.
type backendPort struct {
	name     string
	protocol corev1.Protocol
	number   uint16
}

// readSlices returns what the slices of a Service say, the oldest first.
func readSlices(svc *corev1.Service, its []*discoveryv1.EndpointSlice, said *notices) []backends {
	sorted := slices.Clone(its)
	slices.SortStableFunc(sorted, compareAge)
	var read []backends
	for _, slice := range sorted {
		say := said.about(referenceSlice(slice))
		var family service.Family
		switch slice.AddressType {
		case discoveryv1.AddressTypeIPv4:
			family = service.IPv4
		case discoveryv1.AddressTypeIPv6:
			family = service.IPv6
		case "":
			say(`is ignored: its addressType "" is neither IPv4 nor IPv6: set addressType: IPv4`)
			continue
		default:
			say("is ignored: its addressType %q is neither IPv4 nor IPv6", slice.AddressType)
			continue
		}
		checkJoin(svc, slice, say)
		read = append(read, backends{
			family:    family,
			ports:     slicePorts(slice, say),
			endpoints: sliceEndpoints(slice, family, say),
		})
	}
	return read
}

// checkJoin says when a slice has endpoints, but no port of its Service. That is
// so for a moment while a port is being renamed.
func checkJoin(svc *corev1.Service, slice *discoveryv1.EndpointSlice, say say) {
	its := make([]string, 0, len(slice.Ports))
	for _, p := range slice.Ports {
		its = append(its, portWord(ptr.Deref(p.Name, ""), ptr.Deref(p.Protocol, corev1.ProtocolTCP)))
	}
	wanted := make([]string, 0, len(svc.Spec.Ports))
	for _, p := range svc.Spec.Ports {
		wanted = append(wanted, portWord(p.Name, p.Protocol))
	}
	common := slices.ContainsFunc(its, func(word string) bool { return slices.Contains(wanted, word) })
	if len(slice.Endpoints) > 0 && !common {
		say("its ports %v match no port of %s %v: name them alike", its, reference("Service", svc.Namespace, svc.Name), wanted)
	}
}

// portWord names a port by what joins Services and slices: "http", or "dns/UDP".
func portWord(name string, p corev1.Protocol) string {
	if p == corev1.ProtocolTCP {
		return strconv.Quote(name)
	}
	return strconv.Quote(name + "/" + string(p))
}

// compareAge orders slices from the oldest state to the newest: by what was
// written last, else created last, else by name.
func compareAge(a, b *discoveryv1.EndpointSlice) int {
	return cmp.Or(
		cmp.Compare(revision(a), revision(b)),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Name, b.Name),
	)
}

// revision returns a slice's resourceVersion, which orders the writes of one
// kind (KEP-5504), or 0 when it has none to compare.
func revision(slice *discoveryv1.EndpointSlice) uint64 {
	n, err := strconv.ParseUint(slice.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// slicePorts returns the usable ports of a slice. A port without name or number
// says nothing about any Service port; here it does not mean "all".
func slicePorts(slice *discoveryv1.EndpointSlice, say say) []backendPort {
	var ports []backendPort
	for _, p := range slice.Ports {
		number := ptr.Deref(p.Port, 0)
		if p.Name == nil || number == 0 {
			continue
		}
		if !isPort(number) {
			say("port %q is ignored: %d is not in 1-65535", *p.Name, number)
			continue
		}
		ports = append(ports, backendPort{*p.Name, ptr.Deref(p.Protocol, corev1.ProtocolTCP), uint16(number)}) // #nosec G115 -- isPort was asked
	}
	return ports
}

// sliceEndpoints returns the endpoints of a slice that may be dialled. The API
// allows several addresses an endpoint but means the first.
func sliceEndpoints(slice *discoveryv1.EndpointSlice, family service.Family, say say) []backend {
	endpoints := make([]backend, 0, len(slice.Endpoints))
	for _, e := range slice.Endpoints {
		if len(e.Addresses) == 0 {
			say("an endpoint without address is dropped: give it one")
			continue
		}
		addr, err := parseUnicast(e.Addresses[0])
		switch {
		case err != nil:
			say("endpoint dropped: %v; give the address of the pod", err)
			continue
		case service.FamilyOf(addr) != family:
			say("endpoint %s dropped: the slice's addressType is %s; put it into a slice of its own family", addr, family)
			continue
		}
		endpoints = append(endpoints, backend{
			Endpoint: service.Endpoint{
				Addr:        netip.AddrPortFrom(addr, 0),
				Ready:       ptr.Deref(e.Conditions.Ready, true),
				Serving:     ptr.Deref(e.Conditions.Serving, true),
				Terminating: ptr.Deref(e.Conditions.Terminating, false),
				Node:        ptr.Deref(e.NodeName, ""),
				Zone:        ptr.Deref(e.Zone, ""),
			},
			hints: ptr.Deref(e.Hints, discoveryv1.EndpointHints{}),
		})
	}
	return endpoints
}

// endpointsOf returns the endpoints of one Service port, sorted, each address once,
// as they are to clients of a proxy here.
func endpointsOf(name service.Name, read []backends, here place) []service.Endpoint {
	all := slices.SortedFunc(maps.Values(mergeBackends(name, read)), func(a, b backend) int { return a.Addr.Compare(b.Addr) })
	here.reserve(all)
	endpoints := make([]service.Endpoint, len(all))
	for i, b := range all {
		endpoints[i] = b.Endpoint
		endpoints[i].Local = here.isHere(b.Endpoint)
	}
	return endpoints
}

// mergeBackends returns what all slices say of one Service port, by address. Where
// they contradict each other, as they do while a pod moves from one to another, the
// newer one is believed, except that an address in use again is not taken away by the
// termination of the pod that had it before.
func mergeBackends(name service.Name, read []backends) map[netip.AddrPort]backend {
	merged := map[netip.AddrPort]backend{}
	for _, slice := range read {
		if slice.family != name.Family {
			continue
		}
		for _, port := range slice.ports {
			if proto, err := protocol(port.protocol); err != nil || proto != name.Protocol || port.name != name.Port {
				continue
			}
			for _, b := range slice.endpoints {
				b.Addr = netip.AddrPortFrom(b.Addr.Addr(), port.number)
				if old, has := merged[b.Addr]; has && b.Terminating && !old.Terminating {
					continue
				}
				merged[b.Addr] = b
			}
		}
	}
	return merged
}
