package source_test

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

func TestNodeAddressesHaveThePrimaryOfEachFamilyFirst(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	for _, a := range strings.Fields("172.20.1.2 172.20.1.5 x fd00::2 fd00::5") {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	node.Status.Addresses = append(node.Status.Addresses,
		corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "192.0.2.2"}, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "node"})
	snapshot, notices := build(source.Objects{Node: node})
	equal(t, "node IPs", texts(snapshot.NodeIPs), []string{"172.20.1.2", "fd00::2", "172.20.1.5", "fd00::5"})
	onlyNotice(t, notices, "Node node", `"x"`)
}

func TestExternalAddressesOfANodeCountInAFamilyWithoutInternalOnes(t *testing.T) {
	external := corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "192.0.2.2"}
	for internal, want := range map[string][]string{"": {"192.0.2.2"}, "fd00::2": {"fd00::2", "192.0.2.2"}, "10.0.0.2": {"10.0.0.2"}} {
		node := newNode(strings.Fields(internal)...)
		node.Status.Addresses = append(node.Status.Addresses, external)
		snapshot, _ := build(source.Objects{Node: node})
		equal(t, "node IPs", texts(snapshot.NodeIPs), want)
	}
}

func inZone(zone string) *corev1.Node {
	node := newNode("172.20.1.2")
	if zone != "" {
		node.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	return node
}

func TestPodCIDRsAreThoseOfTheNode(t *testing.T) {
	for name, c := range map[string]struct {
		spec corev1.NodeSpec
		want []netip.Prefix
		says string // empty: no notice
	}{
		"none":           {},
		"dual stack":     {corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24", "fd00:10:244:1::/64"}}, prefixes("10.244.1.0/24 fd00:10:244:1::/64"), ""},
		"the older one":  {corev1.NodeSpec{PodCIDR: "10.244.1.0/24"}, prefixes("10.244.1.0/24"), ""},
		"host bits set":  {corev1.NodeSpec{PodCIDRs: []string{"10.244.001.7/24"}}, prefixes("10.244.1.0/24"), ""},
		"mapped":         {corev1.NodeSpec{PodCIDRs: []string{"::ffff:10.244.1.0/120"}}, prefixes("10.244.1.0/24"), ""},
		"one is nothing": {corev1.NodeSpec{PodCIDRs: []string{"10.244.1.0", "fd00::/64"}}, prefixes("fd00::/64"), `spec.podCIDRs: "10.244.1.0" is not an address range`},
	} {
		t.Run(name, func(t *testing.T) {
			snapshot, notices := build(source.Objects{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}, Spec: c.spec}})
			equal(t, "pod CIDRs", snapshot.PodCIDRs, c.want)
			if c.says == "" {
				equal(t, "notices", notices, nil)
			} else {
				onlyNotice(t, notices, "Node node", c.says)
			}
		})
	}
}

func TestSnapshotChangesWithTheNodeAlone(t *testing.T) {
	first := buildQuietly(t, source.Objects{Node: inZone("a")})
	for name, edit := range map[string]func(*corev1.Node){
		"zone":     func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "b" },
		"pod CIDR": func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.244.1.0/24"} },
		"taint":    func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}} },
		"deletion": func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{} },
	} {
		node := inZone("a")
		if again, _ := source.Build(first, source.Objects{Node: node}, source.Options{}); again != first {
			t.Error("nothing changed, but the Snapshot did")
		}
		edit(node)
		if next, _ := source.Build(first, source.Objects{Node: node}, source.Options{}); next == first {
			t.Errorf("%s: the Snapshot stayed the same", name)
		}
	}
}

func TestOnlyTheTopologyLabelNamesTheZone(t *testing.T) {
	node := inZone("a")
	node.Labels["failure-domain.beta.kubernetes.io/zone"] = "b"
	if got := buildQuietly(t, source.Objects{Node: node}).Node.Zone; got != "a" {
		t.Errorf("zone %q", got)
	}
	delete(node.Labels, corev1.LabelTopologyZone)
	if got := buildQuietly(t, source.Objects{Node: node}).Node.Zone; got != "" {
		t.Errorf("zone %q by the label that is no longer used", got)
	}
}

// eligible returns the last numbers of the addresses that clients of that scope get.
func eligible(p *service.Port, scope service.Scope) string {
	var list []string
	for _, e := range p.Eligible(scope) {
		ip := e.Addr.Addr().String()
		list = append(list, ip[strings.LastIndexAny(ip, ".:")+1:])
	}
	return strings.Join(list, " ")
}

func TestNodeThatChangesItsZoneGetsTheEndpointsForIt(t *testing.T) {
	hinted := func(s *discoveryv1.EndpointSlice) {
		for i, zone := range []string{"a", "b"} {
			s.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
		}
	}
	api := newAPIServer(t, false)
	api.put(inZone("a"), newService("web", "10.96.0.1"), newSlice("web", "w", []string{"10.244.1.1", "10.244.1.2"}, hinted),
		newService("api", "10.96.0.2"), newSlice("api", "a", []string{"10.244.1.3", "10.244.1.4"}))
	f := watchAPI(t, source.Kubernetes{Config: api.config(), NodeName: "n1"})
	const text = "api=10.244.1.3,10.244.1.4 web=10.244.1.1,10.244.1.2"
	last := f.first(t, text)
	unhinted := last.Port(tcp("api", "http"))
	for _, step := range []struct{ zone, want string }{{"a", "1"}, {"b", "2"}, {"c", "1 2"}, {"a", "1"}, {"", "1 2"}} {
		if step.zone != last.Node.Zone {
			api.put(inZone(step.zone))
			last = f.first(t, text)
		}
		if got := eligible(last.Port(tcp("web", "http")), service.Cluster); last.Node.Zone != step.zone || got != step.want {
			t.Errorf("in zone %q: endpoints %q of zone %q, want %q", last.Node.Zone, got, step.zone, step.want)
		}
		if last.Port(tcp("api", "http")) != unhinted {
			t.Errorf("in zone %q the port without hints lost its pointer", step.zone)
		}
	}
}
