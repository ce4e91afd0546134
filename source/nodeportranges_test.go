package source_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/source"
)

const (
	nodePortRanges = "kube-splice.io/node-port-source-ranges"
	acceptProxy    = "kube-splice.io/accept-proxy-protocol"
)

// dualNodePort is a Service of both families with a node port.
func dualNodePort(svc *corev1.Service) {
	svc.Spec.Type = corev1.ServiceTypeNodePort
	svc.Spec.ClusterIPs = []string{"10.96.0.1", "fd00::1"}
	svc.Spec.Ports[0].NodePort = 30080
}

func TestNodePortsAdmitTheRangesOfTheAnnotation(t *testing.T) {
	for name, c := range map[string]struct {
		ranges string
		v4, v6 string // admitted; "[]" is everybody, "shut" that there is no node port
		says   string // empty: no notice
	}{
		"both families":       {"192.0.2.0/24, 2001:db8::/32", "[192.0.2.0/24]", "[2001:db8::/32]", ""},
		"several":             {"198.51.100.0/24,192.0.2.7/32", "[192.0.2.7/32 198.51.100.0/24]", "[]", ""},
		"everybody":           {"0.0.0.0/0,2001:db8::/32", "[]", "[2001:db8::/32]", ""},
		"one cannot be read":  {"192.0.2.0/24,x", "[192.0.2.0/24]", "shut", `["x"]: write them like`},
		"none can be read":    {"192.0.2.7", "shut", "shut", `["192.0.2.7"]`},
		"nothing":             {"", "shut", "shut", `[""]`},
		"divided by a space ": {"192.0.2.0/24 198.51.100.0/24", "shut", "shut", "are not served"},
	} {
		t.Run(name, func(t *testing.T) {
			snapshot, notices := build(source.Objects{Services: []*corev1.Service{newService("web", "10.96.0.1", annotated(nodePortRanges, c.ranges), dualNodePort)}})
			for i, want := range []string{c.v4, c.v6} {
				p := snapshot.Ports[i]
				got := fmt.Sprint(p.NodePortRanges)
				if p.NodePort == 0 {
					got = "shut"
				}
				if got != want || len(p.SourceRanges) != 0 {
					t.Errorf("%v: admits %s, want %s", p.Name.Family, got, want)
				}
			}
			if c.says == "" {
				equal(t, "notices", notices, nil)
			} else {
				onlyNotice(t, notices, "Service default/web", nodePortRanges, c.says)
			}
		})
	}
}

func TestNodePortRangesOfAServiceWithoutNodePortsAreSaid(t *testing.T) {
	_, notices := build(source.Objects{Services: []*corev1.Service{newService("web", "10.96.0.1", annotated(nodePortRanges, "192.0.2.0/24"))}})
	onlyNotice(t, notices, "Service default/web", nodePortRanges, "restricts nothing")
}

// A PROXY header may name a client of either family, wherever its connection came.
func TestRangesOfBothFamiliesHoldWhereHeadersNameClients(t *testing.T) {
	for _, c := range []struct{ ranges, v4, v6 string }{
		{"192.0.2.0/24,2001:db8::/32", "[192.0.2.0/24 2001:db8::/32]", "[192.0.2.0/24 2001:db8::/32]"},
		{"192.0.2.0/24", "[192.0.2.0/24]", "[192.0.2.0/24]"},
		{"192.0.2.0/24,x", "[192.0.2.0/24 ::/128]", "[192.0.2.0/24 ::/128]"}, // of IPv6, nobody
	} {
		snapshot, _ := build(source.Objects{Services: []*corev1.Service{newService("web", "10.96.0.1", annotated(nodePortRanges, c.ranges, acceptProxy, "required"), dualNodePort)}})
		for i, want := range []string{c.v4, c.v6} {
			if got := fmt.Sprint(snapshot.Ports[i].NodePortRanges); got != want {
				t.Errorf("%q: the port of %v admits %s, want %s", c.ranges, snapshot.Ports[i].Name.Family, got, want)
			}
		}
	}
	snapshot, _ := build(source.Objects{Services: []*corev1.Service{newService("web", "10.96.0.1", balanced("198.51.100.1"), annotated(acceptProxy, "required"), func(svc *corev1.Service) {
		svc.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "2001:db8::/32"}
	})}})
	if got := fmt.Sprint(snapshot.Ports[0].SourceRanges); got != "[192.0.2.0/24 2001:db8::/32]" {
		t.Errorf("the load-balancer address admits %s, want both families", got)
	}
}
