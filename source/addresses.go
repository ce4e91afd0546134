package source

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	netutils "k8s.io/utils/net"

	"github.com/kube-splice/kube-splice/service"
)

// parseAddr reads an IP address as the API has always allowed it: leading zeros
// are decimal (172.30.0.041 is 172.30.0.41), IPv4-mapped IPv6 is IPv4.
func parseAddr(s string) (netip.Addr, error) {
	addr, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(s))
	if !ok {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	return addr.Unmap(), nil
}

// parseUnicast is parseAddr for an address that packets are led to. The
// addresses an endpoint may not have are no good here either: taking over a
// loopback or link-local address would break the node itself.
func parseUnicast(s string) (netip.Addr, error) {
	addr, err := parseAddr(s)
	if err != nil {
		return addr, err
	}
	if err := service.CheckEndpoint(addr); err != nil {
		return addr, fmt.Errorf("%s is %w", addr, err)
	}
	return addr, nil
}

// parsePrefix reads an address range as parseAddr reads an address: 192.0.002.9/24 is
// 192.0.2.0/24, and one of IPv4-mapped IPv6 is one of IPv4.
func parsePrefix(s string) (netip.Prefix, error) {
	_, network, err := netutils.ParseCIDRSloppy(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not an address range", s)
	}
	addr, _ := netip.AddrFromSlice(network.IP) // which is four or sixteen bytes long
	bits, _ := network.Mask.Size()
	if addr.Is4In6() {
		bits -= 96
	}
	return netip.PrefixFrom(addr.Unmap(), bits), nil
}

// primaryClusterIP returns the address in spec.clusterIP, or in clusterIPs where
// only that one is given.
func primaryClusterIP(spec *corev1.ServiceSpec) string {
	if spec.ClusterIP == "" && len(spec.ClusterIPs) > 0 {
		return spec.ClusterIPs[0]
	}
	return spec.ClusterIP
}

// clusterIPs returns the clusterIP of each family. The family is that of the
// address; an API server keeps spec.ipFamilies in step with it.
func clusterIPs(spec *corev1.ServiceSpec, say say) map[service.Family]netip.Addr {
	list := spec.ClusterIPs
	if len(list) == 0 {
		list = []string{spec.ClusterIP}
	}
	if primary := primaryClusterIP(spec); list[0] != primary {
		say("spec.clusterIP is %q but spec.clusterIPs begins with %q, which is used: make them equal", primary, list[0])
	}
	found := map[service.Family]netip.Addr{}
	for _, s := range list {
		ip, err := parseUnicast(s)
		if err != nil {
			say("spec.clusterIPs: %v and is not served: correct or remove it", err)
			continue
		}
		family := service.FamilyOf(ip)
		if first, has := found[family]; has {
			say("spec.clusterIPs: %s is not served beside %s: a Service has one %s address", ip, first, family)
			continue
		}
		found[family] = ip
	}
	return found
}

// addressesOf returns the addresses of a list by family, sorted, each once.
func addressesOf(field string, list []string, say say) map[service.Family][]netip.Addr {
	found := map[service.Family][]netip.Addr{}
	for _, s := range list {
		ip, err := parseUnicast(s)
		if err != nil {
			say("%s: %v and is not served: correct or remove it", field, err)
			continue
		}
		family := service.FamilyOf(ip)
		found[family] = append(found[family], ip)
	}
	for family, ips := range found {
		slices.SortFunc(ips, netip.Addr.Compare)
		found[family] = slices.Compact(ips)
	}
	return found
}

// ingressIPs returns the load-balancer addresses whose packets this node takes
// itself. With ipMode Proxy they are to go out to the load balancer (KEP-1860);
// an entry with only a host name has no address.
func ingressIPs(svc *corev1.Service) []string {
	var ips []string
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if in.IP != "" && (in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP) {
			ips = append(ips, in.IP)
		}
	}
	return ips
}
