package source

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/service"
)

// admission is whom the load-balancer addresses, or the node ports, of one IP family admit.
type admission struct {
	ranges []netip.Prefix // sorted, each once; empty: everybody
	shut   bool           // nobody
}

// admissions are those of each family.
type admissions map[service.Family]admission

// across returns the ranges of every family, for portals of one family at which a PROXY
// header may name clients of any.
func (a admissions) across() []netip.Prefix {
	var all []netip.Prefix
	for _, family := range []service.Family{service.IPv4, service.IPv6} {
		all = append(all, a[family].ranges...)
		if a[family].shut {
			nobody := family.Unspecified()
			all = append(all, netip.PrefixFrom(nobody, nobody.BitLen()))
		}
	}
	return all
}

// admissionOf returns whom the load-balancer addresses admit, by family. As in
// kube-proxy, a range /0 admits everybody, and so does a list without any range of
// that family; the annotation that was there before the field is not read.
//
// Unlike kube-proxy, which leaves that to the API server, a family for which no range
// can be read, while one that cannot may have been meant for it, is shut: a slip must
// not open what was to be closed.
func admissionOf(spec *corev1.ServiceSpec, say say) admissions {
	if len(spec.LoadBalancerSourceRanges) == 0 {
		return nil
	}
	if spec.Type != corev1.ServiceTypeLoadBalancer {
		say("spec.loadBalancerSourceRanges restricts nothing: it is about load-balancer addresses, and type %s has none", spec.Type)
		return nil
	}
	found, unread := readAdmissions(spec.LoadBalancerSourceRanges)
	if len(unread) > 0 {
		say("spec.loadBalancerSourceRanges: no address range is %q: write it like 192.0.2.0/24; "+
			"load-balancer addresses of a family for which no other range is given are not served", unread)
	}
	return found
}

// nodePortAdmissionOf returns whom the node ports admit, by the annotation. It is read as
// loadBalancerSourceRanges are, and a slip opens nothing here either.
func nodePortAdmissionOf(svc *corev1.Service, say say) admissions {
	text, given := svc.Annotations[annotationNodePorts]
	if !given {
		return nil
	}
	if !hasNodePorts(&svc.Spec) {
		say("annotation %s restricts nothing: type %s has no node ports", annotationNodePorts, svc.Spec.Type)
		return nil
	}
	found, unread := readAdmissions(strings.Split(text, ","))
	if len(unread) > 0 {
		say("annotation %s: no address range is %q: write them like 192.0.2.0/24,2001:db8::/32; "+
			"node ports of a family for which no other range is given are not served", annotationNodePorts, unread)
	}
	return found
}

// readAdmissions reads ranges, and returns those that cannot be read.
func readAdmissions(list []string) (found admissions, unread []string) {
	ranges, unread := readRanges(list)
	found = admissions{}
	for _, family := range []service.Family{service.IPv4, service.IPv6} {
		its := ranges[family]
		found[family] = admission{ranges: tidied(its), shut: len(unread) > 0 && len(its) == 0}
	}
	return found, unread
}

// readRanges sorts ranges by family, and returns those that cannot be read.
func readRanges(list []string) (ranges map[service.Family][]netip.Prefix, unread []string) {
	ranges = map[service.Family][]netip.Prefix{}
	for _, s := range list {
		prefix, err := parsePrefix(strings.TrimSpace(s)) // the API allows space around it
		if err != nil {
			unread = append(unread, s)
			continue
		}
		family := service.FamilyOf(prefix.Addr())
		ranges[family] = append(ranges[family], prefix)
	}
	return ranges, unread
}

// tidied sorts ranges and removes those given twice. One that holds every address
// is no restriction.
func tidied(ranges []netip.Prefix) []netip.Prefix {
	if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
		return nil
	}
	slices.SortFunc(ranges, func(p, q netip.Prefix) int {
		return cmp.Or(p.Addr().Compare(q.Addr()), cmp.Compare(p.Bits(), q.Bits()))
	})
	return slices.Compact(ranges)
}
