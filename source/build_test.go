package source_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

func TestPortsOfTheSameNameAndNumberAreIndependent(t *testing.T) {
	dns := func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeNodePort
		svc.Spec.Ports = []corev1.ServicePort{
			{Name: "dns", Port: 53, NodePort: 30053, Protocol: corev1.ProtocolTCP},
			{Name: "dns", Port: 53, NodePort: 30053, Protocol: corev1.ProtocolUDP},
		}
	}
	elsewhere := func(svc *corev1.Service) { svc.Namespace = "other" }
	snapshot := buildQuietly(t, source.Objects{Services: []*corev1.Service{
		newService("web", "10.96.0.2", elsewhere), newService("web", "10.96.0.1"), newService("dns", "10.96.0.3", dns),
	}})
	equal(t, "ports", names(snapshot), []string{
		"default/dns:dns tcp IPv4", "default/dns:dns udp IPv4", "default/web:http tcp IPv4", "other/web:http tcp IPv4",
	})
	for _, p := range snapshot.Ports[:2] {
		if p.NodePort != 30053 || p.Number != 53 {
			t.Errorf("%v: number %d, nodePort %d", p.Name, p.Number, p.NodePort)
		}
	}
}

func TestDualStackServiceIsOnePortAFamily(t *testing.T) {
	dual := func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Spec.ClusterIPs = []string{"fd00::1", "10.96.0.1"}
		svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
		svc.Spec.ExternalIPs = []string{"192.0.2.9", "2001:db8::1", "192.0.2.1", "192.0.2.9"}
		svc.Spec.Ports[0].NodePort = 30080
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
			{IP: "2001:db8::b"}, {Hostname: "lb.example"}, {IP: "198.51.100.1", IPMode: new(corev1.LoadBalancerIPModeVIP)},
			{IP: "198.51.100.2", IPMode: new(corev1.LoadBalancerIPModeProxy)},
		}
	}
	snapshot := buildQuietly(t, source.Objects{
		Services: []*corev1.Service{newService("web", "fd00::1", dual)},
		Slices: []*discoveryv1.EndpointSlice{
			newSlice("web", "web-4", []string{"10.244.1.1"}), newSlice("web", "web-6", []string{"fd00:10::1"}),
		},
	})
	equal(t, "ports", names(snapshot), []string{"default/web:http tcp IPv4", "default/web:http tcp IPv6"})
	v4, v6 := snapshot.Ports[0], snapshot.Ports[1]
	equal(t, "v4 clusterIP, endpoints", append(addrs(v4), v4.ClusterIP.String()), []string{"10.244.1.1:8080", "10.96.0.1"})
	equal(t, "v6 clusterIP, endpoints", append(addrs(v6), v6.ClusterIP.String()), []string{"[fd00:10::1]:8080", "fd00::1"})
	equal(t, "v4 externalIPs", texts(v4.ExternalIPs), []string{"192.0.2.1", "192.0.2.9"})
	equal(t, "v6 externalIPs", texts(v6.ExternalIPs), []string{"2001:db8::1"})
	equal(t, "v4 load balancer", texts(v4.LoadBalancerIPs), []string{"198.51.100.1"})
	equal(t, "v6 load balancer", texts(v6.LoadBalancerIPs), []string{"2001:db8::b"})
	equal(t, "nodePorts", []uint16{v4.NodePort, v6.NodePort}, []uint16{30080, 30080})
}

func TestAddressesAreReadAsTheAPIAlwaysReadThem(t *testing.T) {
	zeros := func(svc *corev1.Service) { svc.Spec.ExternalIPs = []string{"192.0.002.001"} }
	snapshot := buildQuietly(t, source.Objects{
		Services: []*corev1.Service{newService("web", "172.30.0.041", zeros)},
		Slices:   []*discoveryv1.EndpointSlice{newSlice("web", "a", []string{"010.244.1.09"})},
	})
	p := snapshot.Ports[0]
	equal(t, "addresses", append(addrs(p), p.ClusterIP.String(), p.ExternalIPs[0].String()),
		[]string{"10.244.1.9:8080", "172.30.0.41", "192.0.2.1"})
}

// notOurs are Services that have no port, silently.
var notOurs = map[string]func(*corev1.Service){
	"headless":      func(svc *corev1.Service) { svc.Spec.ClusterIP = "None"; svc.Spec.ClusterIPs = []string{"None"} },
	"external name": func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeExternalName },
	"other proxy": func(svc *corev1.Service) {
		svc.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": ""}
	},
}

func TestServicesNotForUsAreLeftOutSilently(t *testing.T) {
	for name, edit := range notOurs {
		t.Run(name, func(t *testing.T) {
			broken := newSlice("odd", "a", []string{"127.0.0.1"}, func(s *discoveryv1.EndpointSlice) { s.AddressType = "FQDN" })
			alien := newSlice("odd", "b", []string{"10.244.1.1"}, func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name = new("x") })
			snapshot := buildQuietly(t, source.Objects{
				Services: []*corev1.Service{newService("odd", "10.96.0.2", edit), newService("web", "10.96.0.1")},
				Slices:   []*discoveryv1.EndpointSlice{broken, alien},
			})
			equal(t, "ports", names(snapshot), []string{"default/web:http tcp IPv4"})
		})
	}
}

func TestServiceComesAndGoesWithItsType(t *testing.T) {
	edits := map[string]func(*corev1.Service){"no clusterIP": func(svc *corev1.Service) { svc.Spec.ClusterIP = "" }}
	maps.Copy(edits, notOurs)
	for name, edit := range edits {
		t.Run(name, func(t *testing.T) {
			var snapshot *service.Snapshot
			for i, want := range []int{0, 1, 0} {
				svc := newService("web", "10.96.0.1")
				if want == 0 {
					edit(svc)
				}
				snapshot, _ = source.Build(snapshot, source.Objects{Services: []*corev1.Service{svc}}, source.Options{})
				if len(snapshot.Ports) != want {
					t.Errorf("step %d: %d ports, want %d", i, len(snapshot.Ports), want)
				}
			}
		})
	}
}

// badServices are wrong in one place: one notice says where, the rest is served.
var badServices = map[string]struct {
	edit func(*corev1.Service)
	says string
	left []string
}{
	"namespace with a rule in it": {
		func(svc *corev1.Service) { svc.Namespace = "x\n-A INPUT -j ACCEPT" }, "not a DNS label", nil},
	"name with a quote": {
		func(svc *corev1.Service) { svc.Name = `web" -j ACCEPT` }, "not a DNS label", nil},
	"port name with a quote": {
		func(svc *corev1.Service) { svc.Spec.Ports[0].Name = "a\"\nb" }, "not a DNS label", []string{"default/web:more tcp IPv4"}},
	"port zero":               {func(svc *corev1.Service) { svc.Spec.Ports[0].Port = 0 }, "1-65535", []string{"default/web:more tcp IPv4"}},
	"port too high":           {func(svc *corev1.Service) { svc.Spec.Ports[0].Port = 65616 }, "65616", []string{"default/web:more tcp IPv4"}},
	"sctp":                    {func(svc *corev1.Service) { svc.Spec.Ports[0].Protocol = "SCTP" }, "SCTP", []string{"default/web:more tcp IPv4"}},
	"protocol unknown":        {func(svc *corev1.Service) { svc.Spec.Ports[0].Protocol = "Tcp" }, "TCP or UDP", []string{"default/web:more tcp IPv4"}},
	"two ports of one name":   {func(svc *corev1.Service) { svc.Spec.Ports[0].Name = "more" }, "rename", []string{"default/web:more tcp IPv4"}},
	"two ports of one number": {func(svc *corev1.Service) { svc.Spec.Ports[0].Port = 81 }, "clusterIP 10.96.0.1:81/tcp of default/web:more is already that of default/web:http", []string{"default/web:http tcp IPv4"}},
	"nodePort too high": {
		func(svc *corev1.Service) {
			svc.Spec.Type = corev1.ServiceTypeLoadBalancer
			svc.Spec.Ports[0].NodePort = 70000
		}, "70000", []string{"default/web:more tcp IPv4"}},
	"nodePort absent": {
		func(svc *corev1.Service) {
			svc.Spec.Type = corev1.ServiceTypeNodePort
			svc.Spec.Ports[1].NodePort = 30081
		}, "nodePort", []string{"default/web:http tcp IPv4", "default/web:more tcp IPv4"}},
	"type unknown": {
		func(svc *corev1.Service) { svc.Spec.Type = "Nodeport" }, `"Nodeport"`, []string{"default/web:http tcp IPv4", "default/web:more tcp IPv4"}},
	"clusterIP absent":         {func(svc *corev1.Service) { svc.Spec.ClusterIP = "" }, "set e.g. clusterIP: 10.96.0.99", nil},
	"clusterIP no address":     {func(svc *corev1.Service) { svc.Spec.ClusterIP = "10.96.0" }, `"10.96.0"`, nil},
	"clusterIP of the node":    {func(svc *corev1.Service) { svc.Spec.ClusterIP = "127.0.0.1" }, "loopback", nil},
	"two clusterIPs, one kind": {func(svc *corev1.Service) { svc.Spec.ClusterIPs = []string{"10.96.0.1", "10.96.0.2"} }, "10.96.0.2", []string{"default/web:http tcp IPv4", "default/web:more tcp IPv4"}},
	"clusterIPs disagree":      {func(svc *corev1.Service) { svc.Spec.ClusterIPs = []string{"10.96.0.2"} }, "10.96.0.2", []string{"default/web:http tcp IPv4", "default/web:more tcp IPv4"}},
	"source ranges, no load balancer": {func(svc *corev1.Service) {
		svc.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
	}, "type ClusterIP has none", []string{"default/web:http tcp IPv4", "default/web:more tcp IPv4"}},
	"external traffic policy": {func(svc *corev1.Service) { svc.Spec.ExternalTrafficPolicy = "OnlyLocal" }, `spec.externalTrafficPolicy "OnlyLocal" is unknown and Cluster is used`, []string{"default/web:http tcp IPv4", "default/web:more tcp IPv4"}},
	"internal traffic policy": {func(svc *corev1.Service) {
		svc.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicy("local"))
	}, `spec.internalTrafficPolicy "local" is unknown and Cluster is used`, []string{"default/web:http tcp IPv4", "default/web:more tcp IPv4"}},
	"externalIP link-local": {func(svc *corev1.Service) { svc.Spec.ExternalIPs = []string{"169.254.169.254"} }, "link-local", []string{"default/web:http tcp IPv4", "default/web:more tcp IPv4"}},
}

func TestBadServiceLosesOnlyWhatIsBad(t *testing.T) {
	for name, c := range badServices {
		t.Run(name, func(t *testing.T) {
			svc := newService("web", "10.96.0.1")
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: "more", Port: 81, Protocol: corev1.ProtocolTCP})
			c.edit(svc)
			snapshot, notices := build(source.Objects{Services: []*corev1.Service{svc}})
			object := "Service default/web"
			if full := svc.Namespace + "/" + svc.Name; full != "default/web" {
				object = fmt.Sprintf("Service %q", full)
			}
			onlyNotice(t, notices, object, c.says)
			equal(t, "ports", names(snapshot), c.left)
		})
	}
}

func TestUnchangedPortsKeepTheirPointer(t *testing.T) {
	objects := func(ip string) source.Objects {
		return source.Objects{
			Services: []*corev1.Service{newService("web", "10.96.0.1"), newService("api", "10.96.0.2")},
			Slices:   []*discoveryv1.EndpointSlice{newSlice("web", "w", []string{"10.244.1.1"}), newSlice("api", "a", []string{ip})},
		}
	}
	first := buildQuietly(t, objects("10.244.1.2"))
	again, _ := source.Build(first, objects("10.244.1.2"), source.Options{})
	if again != first {
		t.Error("nothing changed, but the Snapshot did")
	}
	moved, _ := source.Build(first, objects("10.244.1.3"), source.Options{})
	if moved.Port(tcp("web", "http")) != first.Port(tcp("web", "http")) {
		t.Error("web did not change, but its pointer did")
	}
	if api := moved.Port(tcp("api", "http")); api == first.Port(tcp("api", "http")) || addrs(api)[0] != "10.244.1.3:8080" {
		t.Errorf("api changed, but is %v", addrs(api))
	}
	fewer := objects("10.244.1.2")
	fewer.Services = slices.Delete(fewer.Services, 1, 2)
	if gone, _ := source.Build(first, fewer, source.Options{}); len(gone.Ports) != 1 || gone.Ports[0] != first.Port(tcp("web", "http")) {
		t.Errorf("after api left: %v", names(gone))
	}
	node := objects("10.244.1.2")
	node.Node = &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.20.1.2"}}}}
	if known, _ := source.Build(first, node, source.Options{}); len(known.NodeIPs) != 1 || known.Ports[0] != first.Ports[0] {
		t.Errorf("after the node became known: %v", known.NodeIPs)
	}
}
