package source_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

func nodePort(n int32) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeNodePort
		svc.Spec.Ports[0].NodePort = n
	}
}

func externalIPs(ips ...string) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Spec.ExternalIPs = ips }
}

func balanced(ip string) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip}}
	}
}

func udp(svc *corev1.Service) { svc.Spec.Ports[0].Protocol = corev1.ProtocolUDP }

func number(n int32) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.Spec.Ports[0].Port = n }
}

// portals returns all portals of a Snapshot as "service kind address number".
func portals(s *service.Snapshot) []string {
	var list []string
	for _, p := range s.Ports {
		for _, portal := range p.Portals() {
			line := p.Name.Service + " " + portal.Kind.String()
			if portal.Addr.IsValid() {
				line += " " + portal.Addr.String()
			}
			list = append(list, line)
		}
	}
	return list
}

func TestOnePortalHasOneOwner(t *testing.T) {
	for name, c := range map[string]struct {
		a, b *corev1.Service
		want []string
		says []string // nil: no notice
	}{
		"clusterIP": {
			newService("a", "10.96.0.1"), newService("b", "10.96.0.1", nodePort(30080)),
			[]string{"a clusterIP 10.96.0.1"}, []string{"clusterIP 10.96.0.1:80/tcp of default/b:http", "default/a:http"}},
		"clusterIP, other port": {
			newService("a", "10.96.0.1"), newService("b", "10.96.0.1", number(81)),
			[]string{"a clusterIP 10.96.0.1", "b clusterIP 10.96.0.1"}, nil},
		"clusterIP, other protocol": {
			newService("a", "10.96.0.1"), newService("b", "10.96.0.1", udp),
			[]string{"a clusterIP 10.96.0.1", "b clusterIP 10.96.0.1"}, nil},
		"nodePort": {
			newService("a", "10.96.0.1", nodePort(30080)), newService("b", "10.96.0.2", nodePort(30080)),
			[]string{"a clusterIP 10.96.0.1", "a nodePort", "b clusterIP 10.96.0.2"}, []string{"nodePort 30080/tcp of default/b:http", "default/a:http"}},
		"nodePort, other protocol": {
			newService("a", "10.96.0.1", nodePort(30080)), newService("b", "10.96.0.2", nodePort(30080), udp),
			[]string{"a clusterIP 10.96.0.1", "a nodePort", "b clusterIP 10.96.0.2", "b nodePort"}, nil},
		"nodePort, other family": {
			newService("a", "10.96.0.1", nodePort(30080)), newService("b", "fd00::1", nodePort(30080)),
			[]string{"a clusterIP 10.96.0.1", "a nodePort", "b clusterIP fd00::1", "b nodePort"}, nil},
		"externalIP": {
			newService("a", "10.96.0.1", externalIPs("192.0.2.1")), newService("b", "10.96.0.2", externalIPs("192.0.2.1", "192.0.2.2")),
			[]string{"a clusterIP 10.96.0.1", "a externalIP 192.0.2.1", "b clusterIP 10.96.0.2", "b externalIP 192.0.2.2"},
			[]string{"externalIP 192.0.2.1:80/tcp of default/b:http", "default/a:http"}},
		"load balancer": {
			newService("a", "10.96.0.1", balanced("192.0.2.1")), newService("b", "10.96.0.2", balanced("192.0.2.1")),
			[]string{"a clusterIP 10.96.0.1", "a loadBalancer 192.0.2.1", "b clusterIP 10.96.0.2"}, []string{"loadBalancer 192.0.2.1:80/tcp of default/b:http"}},
		"externalIP naming another's clusterIP": {
			newService("a", "10.96.0.1", externalIPs("10.96.0.2")), newService("b", "10.96.0.2"),
			[]string{"a clusterIP 10.96.0.1", "b clusterIP 10.96.0.2"}, []string{"externalIP 10.96.0.2:80/tcp of default/a:http", "default/b:http"}},
		"node port for clients inside and outside": {
			newService("a", "10.96.0.1", nodePort(30080), trafficPolicies("", "Local")), newService("b", "10.96.0.2", nodePort(30081), trafficPolicies("", "Local")),
			[]string{"a clusterIP 10.96.0.1", "a nodePort", "a nodePort", "b clusterIP 10.96.0.2", "b nodePort", "b nodePort"}, nil},
		"node port, other policy": {
			newService("a", "10.96.0.1", nodePort(30080)), newService("b", "10.96.0.2", nodePort(30080), trafficPolicies("", "Local")),
			[]string{"a clusterIP 10.96.0.1", "a nodePort", "b clusterIP 10.96.0.2"}, []string{"nodePort 30080/tcp of default/b:http", "default/a:http"}},
		"one Service naming an address twice": {
			newService("a", "10.96.0.1", balanced("192.0.2.1"), externalIPs("192.0.2.1")), newService("b", "10.96.0.2"),
			[]string{"a clusterIP 10.96.0.1", "a loadBalancer 192.0.2.1", "a externalIP 192.0.2.1", "b clusterIP 10.96.0.2"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, order := range [][]*corev1.Service{{c.a, c.b}, {c.b, c.a}} {
				snapshot, notices := build(source.Objects{Services: order})
				equal(t, "portals", portals(snapshot), c.want)
				if c.says == nil {
					equal(t, "notices", notices, nil)
					continue
				}
				loser := "Service default/b"
				if name == "externalIP naming another's clusterIP" {
					loser = "Service default/a"
				}
				onlyNotice(t, notices, loser, c.says...)
			}
		})
	}
}

func TestPortalIsServedAgainWhenItsOwnerLeaves(t *testing.T) {
	a, b := newService("a", "10.96.0.1"), newService("b", "10.96.0.1")
	both, _ := build(source.Objects{Services: []*corev1.Service{a, b}})
	alone, notices := source.Build(both, source.Objects{Services: []*corev1.Service{b}}, source.Options{})
	equal(t, "portals", portals(alone), []string{"b clusterIP 10.96.0.1"})
	equal(t, "notices", notices, nil)
}

func TestServiceGivenTwiceIsOnePort(t *testing.T) {
	snapshot, _ := build(source.Objects{Services: []*corev1.Service{newService("a", "10.96.0.1"), newService("a", "10.96.0.2")}})
	equal(t, "portals", portals(snapshot), []string{"a clusterIP 10.96.0.1"})
}
