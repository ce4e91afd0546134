package source_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

// sliceOf returns a slice of default/web with the pods of a text: "+3=a,b/n1" is
// 10.244.1.3 on our node n1, hinted for the zones a and b and the node n1. Pods are
// ready; "3?" is not and does not serve, "3~" terminates and serves, "3!" terminates
// and is ready.
func sliceOf(pods string) *discoveryv1.EndpointSlice {
	slice := newSlice("web", "web-1", nil)
	for _, pod := range strings.Fields(pods) {
		e := discoveryv1.Endpoint{NodeName: new("n2"), Hints: &discoveryv1.EndpointHints{}}
		pod, here := strings.CutPrefix(pod, "+")
		if here {
			e.NodeName = new("n1")
		}
		head, hints, _ := strings.Cut(pod, "=")
		zones, nodes, _ := strings.Cut(hints, "/")
		number := strings.TrimRight(head, "?~!")
		e.Addresses = []string{"10.244.1." + number}
		switch strings.TrimPrefix(head, number) {
		case "?":
			e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(false)}
		case "~":
			e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
		case "!":
			e.Conditions = discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(true)}
		}
		comma := func(r rune) bool { return r == ',' }
		for _, z := range strings.FieldsFunc(zones, comma) {
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: z})
		}
		for _, n := range strings.FieldsFunc(nodes, comma) {
			e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: n})
		}
		slice.Endpoints = append(slice.Endpoints, e)
	}
	return slice
}

// exposed is a Service with traffic policies that clients outside may reach.
func exposed(internal corev1.ServiceInternalTrafficPolicy, external corev1.ServiceExternalTrafficPolicy) []func(*corev1.Service) {
	return []func(*corev1.Service){trafficPolicies(internal, external), nodePort(30080)}
}

// hidden is one that only its clusterIP leads to.
func hidden(internal corev1.ServiceInternalTrafficPolicy, external corev1.ServiceExternalTrafficPolicy) []func(*corev1.Service) {
	return []func(*corev1.Service){trafficPolicies(internal, external)}
}

// endpointChoices are the situations of kube-proxy's own table of the choice
// (TestCategorizeEndpoints), and some more. Our node is n1.
var endpointChoices = []struct {
	name           string
	zone           string // of our node; "none": it has no label
	service        []func(*corev1.Service)
	pods           string
	cluster, local string // eligible in each scope
	// What clients get by the clusterIP, and inside and outside by the node port; "-":
	// there is no such way.
	clusterIP, inside, outside string
}{
	// Topology hints.
	{"every ready pod hinted, some for our zone", "a", hidden("", ""), "3=a 4=b 5=c 6=a", "3 6", "", "3 6", "-", "-"},
	{"hints leave external Local alone", "a", exposed("", "Local"), "+3=a +4=b 5=c 6=a", "3 6", "3 4", "3 6", "3 6", "3 4"},
	{"hints leave internal Local alone", "a", exposed("Local", "Cluster"), "+3=a +4=b 5=c 6=a", "3 6", "3 4", "3 4", "3 6", "3 6"},
	{"node without labels", "none", hidden("", ""), "3=a", "3", "", "3", "-", "-"},
	{"node with an empty zone", "", hidden("", ""), "3=a", "3", "", "3", "-", "-"},
	{"no hint for our zone", "b", hidden("", ""), "3=a", "3", "", "3", "-", "-"},
	{"one of our zone is not ready", "a", hidden("", ""), "3=a 4=b 5=c 6?=a", "3", "", "3", "-", "-"},
	{"those of our zone are not ready", "a", hidden("", ""), "3?=a 4=b 5=c 6?=a", "4 5", "", "4 5", "-", "-"},
	{"one without hint", "a", hidden("", ""), "3=a 4=b 5 6=a", "3 4 5 6", "", "3 4 5 6", "-", "-"},
	{"several zones a hint", "c", hidden("", ""), "3=a,b,c 4=b,c 5=b,d 6=c", "3 4 6", "", "3 4 6", "-", "-"},
	{"hints for our node go first", "a", hidden("", ""), "3=a/n1 4=b/n2 5=c/n3 6=a/n4", "3", "", "3", "-", "-"},
	{"one without any hint", "a", hidden("", ""), "3=a/n1 4 5=c/n3 6=a/n4", "3 4 5 6", "", "3 4 5 6", "-", "-"},
	{"no hint for our node, but for our zone", "a", hidden("", ""), "3=a/n0 4=b/n2 5=c/n3 6=a/n4", "3 6", "", "3 6", "-", "-"},
	{"hinted and local are not the same", "a", exposed("Cluster", "Local"), "+0=a +1=b 2=a 3=b", "0 2", "0 1", "0 2", "0 2", "0 1"},
	// Internal traffic policy.
	{"internal Local, no pods", "none", hidden("Local", ""), "", "", "", "", "-", "-"},
	{"internal Local, none here", "none", hidden("Local", ""), "0 1", "0 1", "", "", "-", "-"},
	{"internal Local, all here", "none", hidden("Local", ""), "+0 +1", "0 1", "0 1", "0 1", "-", "-"},
	{"internal Local, one here", "none", hidden("Local", ""), "+0 1", "0 1", "0", "0", "-", "-"},
	// Conditions.
	{"none ready", "none", hidden("", ""), "0? 1?", "", "", "", "-", "-"},
	{"one ready", "none", hidden("", ""), "0? 1", "1", "", "1", "-", "-"},
	{"all terminating", "none", hidden("", ""), "+0~ 1~", "0 1", "0", "0 1", "-", "-"},
	// Both policies.
	{"internal Local, external Cluster", "none", exposed("Local", "Cluster"), "+0 1", "0 1", "0", "0", "0 1", "0 1"},
	{"internal Cluster, external Local", "none", exposed("Cluster", "Local"), "+0 1", "0 1", "0", "0 1", "0 1", "0"},
	{"both Local, one here", "none", exposed("Local", "Local"), "+0 1", "0 1", "0", "0", "0 1", "0"},
	{"both Local, none here", "none", exposed("Local", "Local"), "0 1", "0 1", "", "", "0 1", ""},
	{"both Local, none here, all terminating", "none", exposed("Local", "Local"), "0~ 1~", "0 1", "", "", "0 1", ""},
	{"external Local, here only one that terminates", "none", exposed("Cluster", "Local"), "0 +1? +2~ 3~", "0", "2", "0", "0", "2"},
	{"external Local of a Service nobody outside reaches", "none", hidden("", "Local"), "0 +1", "0 1", "1", "0 1", "-", "-"},
	{"internal Local, one here, clusterIP alone", "none", hidden("Local", ""), "0 +1", "0 1", "1", "1", "-", "-"},
	// Nothing to choose from.
	{"no pods", "none", hidden("", ""), "", "", "", "", "-", "-"},
	{"one that neither is ready nor serves", "a", hidden("", ""), "0?", "", "", "", "-", "-"},

	{"hint of one not ready, for our zone", "a", hidden("", ""), "3?=a 4=b 5=b", "4 5", "", "4 5", "-", "-"},
	{"one not ready without hint", "a", hidden("", ""), "3=a 4=b 5?", "3", "", "3", "-", "-"},
	{"terminating ones know no hints", "a", hidden("", ""), "3~=a 4~=b", "3 4", "", "3 4", "-", "-"},
	{"ready though terminating (publishNotReadyAddresses)", "a", hidden("", ""), "3!=a 4=b 5~=a", "3", "", "3", "-", "-"},
	{"hints for nodes only, none for ours", "a", hidden("", ""), "3=/n2 4=/n3", "3 4", "", "3 4", "-", "-"},
	{"hint for our node, zones of others", "b", hidden("", ""), "3=a/n2,n1 4=b/n3", "3", "", "3", "-", "-"},
	{"both Local, here only one that terminates", "none", exposed("Local", "Local"), "0 +1~", "0", "1", "1", "0", "1"},
	{"external Local, none here is any good", "none", exposed("Cluster", "Local"), "0~ +1?", "0", "", "0", "0", ""},
}

func TestClientsGetTheEndpointsKubeProxyWouldGiveThem(t *testing.T) {
	for _, c := range endpointChoices {
		t.Run(c.name, func(t *testing.T) {
			node := newNode("172.20.1.2")
			if c.zone != "none" {
				node.Labels = map[string]string{corev1.LabelTopologyZone: c.zone}
			}
			objects := source.Objects{
				Services: []*corev1.Service{newService("web", "10.96.0.1", c.service...)},
				Slices:   []*discoveryv1.EndpointSlice{sliceOf(c.pods)}, Node: node,
			}
			snapshot, notices := source.Build(nil, objects, source.Options{NodeName: "n1"})
			equal(t, "notices", notices, nil)
			p := snapshot.Ports[0]
			equal(t, "eligible in the cluster, locally",
				[]string{eligible(p, service.Cluster), eligible(p, service.Local)}, []string{c.cluster, c.local})
			equal(t, "by clusterIP, inside, outside", clientsOf(p), []string{c.clusterIP, c.inside, c.outside})
		})
	}
}

// clientsOf returns what clients get by the clusterIP, and inside and outside by the
// node port.
func clientsOf(p *service.Port) []string {
	clients := []string{"-", "-", "-"}
	for _, portal := range p.Portals() {
		its := eligible(p, portal.Scope)
		switch {
		case portal.Kind == service.ClusterIP:
			clients[0] = its
		case portal.Clients == service.Inside:
			clients[1] = its
		case portal.Clients == service.Outside:
			clients[2] = its
		default:
			clients[1], clients[2] = its, its
		}
	}
	return clients
}

func TestNoEndpointIsLocalToANodeWithoutName(t *testing.T) {
	slice := sliceOf("+1 2")
	slice.Endpoints[1].NodeName = nil
	slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.244.1.3"}, NodeName: new("")})
	p, _ := webPort(slice)
	if got := eligible(p, service.Local); got != "" {
		t.Errorf("local endpoints: %s", got)
	}
}

func TestHintsAreOfOneServicePortAndFamily(t *testing.T) {
	v6 := newSlice("web", "web-6", []string{"fd00:10::7", "fd00:10::8"})
	dual := newService("web", "10.96.0.1", func(svc *corev1.Service) {
		svc.Spec.ClusterIPs = []string{"10.96.0.1", "fd00::1"}
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: "admin", Port: 81, Protocol: corev1.ProtocolTCP})
	})
	admin := func(number int, pods string) *discoveryv1.EndpointSlice {
		slice := sliceOf(pods)
		slice.Name, slice.Ports[0].Name = fmt.Sprint("admin", number), new("admin")
		return slice
	}
	objects := source.Objects{
		Services: []*corev1.Service{dual}, Node: inZone("a"),
		Slices: []*discoveryv1.EndpointSlice{sliceOf("3=a 4=b"), v6, admin(1, "3=a 4=b"), admin(2, "5")},
	}
	snapshot, _ := source.Build(nil, objects, source.Options{NodeName: "n1"})
	var got []string
	for _, p := range snapshot.Ports {
		got = append(got, p.Name.Port+" "+p.Name.Family.String()+": "+eligible(p, service.Cluster))
	}
	equal(t, "eligible", got, []string{"admin IPv4: 3 4 5", "admin IPv6: ", "http IPv4: 3", "http IPv6: 7 8"})
}

func TestReservedEndpointsStayKnown(t *testing.T) {
	objects := source.Objects{
		Services: []*corev1.Service{newService("web", "10.96.0.1")}, Node: inZone("a"),
		Slices: []*discoveryv1.EndpointSlice{sliceOf("3=a 4=b 5?=b")},
	}
	snapshot, _ := source.Build(nil, objects, source.Options{NodeName: "n1"})
	var reserved []string
	for _, e := range snapshot.Ports[0].Endpoints {
		reserved = append(reserved, strconv.FormatBool(e.Reserved))
	}
	if !slices.Equal(reserved, []string{"false", "true", "false"}) {
		t.Errorf("reserved: %v", reserved)
	}
}
