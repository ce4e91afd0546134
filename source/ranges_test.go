package source_test

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/source"
)

func prefixes(list string) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range strings.Fields(list) {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

func TestLoadBalancerAddressesAdmitTheSourceRanges(t *testing.T) {
	for name, c := range map[string]struct {
		ranges []string
		v4, v6 string // admitted; "all", or "shut" if there is no load-balancer address
		says   string // empty: no notice
	}{
		"none given":                       {nil, "all", "all", ""},
		"both families":                    {[]string{"192.0.2.0/24", "2001:db8::/32"}, "192.0.2.0/24", "2001:db8::/32", ""},
		"one family restricts only it":     {[]string{"192.0.2.0/24"}, "192.0.2.0/24", "all", ""},
		"space around":                     {[]string{" 192.0.2.0/24\t", "\n2001:db8::/32 "}, "192.0.2.0/24", "2001:db8::/32", ""},
		"host bits, zeros, mapped":         {[]string{"192.0.002.9/24", "::ffff:198.51.100.0/120", "2001:DB8::1/32"}, "192.0.2.0/24 198.51.100.0/24", "2001:db8::/32", ""},
		"sorted, each once":                {[]string{"198.51.100.0/24", "192.0.2.0/24", "192.0.2.1/24", "192.0.2.0/28"}, "192.0.2.0/24 192.0.2.0/28 198.51.100.0/24", "all", ""},
		"all of IPv4":                      {[]string{"192.0.2.0/24", "0.0.0.0/0", "2001:db8::/32"}, "all", "2001:db8::/32", ""},
		"all of IPv4, other text":          {[]string{"10.0.0.0/0", "2001:db8::/32"}, "all", "2001:db8::/32", ""},
		"all of IPv6":                      {[]string{"192.0.2.0/24", "::/0", "2001:db8::/32"}, "192.0.2.0/24", "all", ""},
		"one cannot be read":               {[]string{"192.0.2.0/24", "2001:db8::/32", "192.0.2.0"}, "192.0.2.0/24", "2001:db8::/32", `["192.0.2.0"]`},
		"none can be read":                 {[]string{"192.0.2.0", "x\n"}, "shut", "shut", `["192.0.2.0" "x\n"]: write it like 192.0.2.0/24`},
		"empty text":                       {[]string{""}, "shut", "shut", `[""]`},
		"none of IPv6, one cannot be read": {[]string{"192.0.2.0/24", "2001:db8::/129"}, "192.0.2.0/24", "shut", "are not served"},
		"all, one cannot be read":          {[]string{"0.0.0.0/0", "::/0", "x"}, "all", "all", `["x"]`},
	} {
		t.Run(name, func(t *testing.T) {
			svc := newService("web", "10.96.0.1", balanced("198.51.100.1"), func(svc *corev1.Service) {
				svc.Spec.ClusterIPs = []string{"10.96.0.1", "fd00::1"}
				svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: "2001:db8::b"})
				svc.Spec.Ports[0].NodePort = 30080
				svc.Spec.LoadBalancerSourceRanges = c.ranges
				svc.Annotations = map[string]string{"service.beta.kubernetes.io/load-balancer-source-ranges": "203.0.113.0/24"}
			})
			snapshot, notices := build(source.Objects{Services: []*corev1.Service{svc}})
			for i, want := range []string{c.v4, c.v6} {
				p := snapshot.Ports[i]
				var admitted []string
				for _, r := range p.SourceRanges {
					admitted = append(admitted, r.String())
				}
				got := strings.Join(admitted, " ")
				if got == "" {
					got = "all"
				}
				if len(p.LoadBalancerIPs) == 0 {
					got = "shut"
				}
				if got != want || p.NodePort != 30080 {
					t.Errorf("%v: admits %s, want %s; nodePort %d", p.Name.Family, got, want, p.NodePort)
				}
			}
			if c.says == "" {
				equal(t, "notices", notices, nil)
			} else {
				onlyNotice(t, notices, "Service default/web", "spec.loadBalancerSourceRanges", c.says)
			}
		})
	}
}

func TestSourceRangesGoWithTheLoadBalancer(t *testing.T) {
	for _, kind := range []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort} {
		snapshot, notices := build(source.Objects{Services: []*corev1.Service{newService("web", "10.96.0.1", balanced("198.51.100.1"), func(svc *corev1.Service) {
			svc.Spec.Type, svc.Spec.Ports[0].NodePort = kind, 30080
			svc.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
		})}})
		equal(t, "source ranges", snapshot.Ports[0].SourceRanges, nil)
		onlyNotice(t, notices, "Service default/web", "restricts nothing", string(kind))
	}
}
