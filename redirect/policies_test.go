package redirect_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/kube-splice/kube-splice/lab"
	"github.com/kube-splice/kube-splice/redirect"
	"github.com/kube-splice/kube-splice/service"
)

// apart makes of a binding for anyone two: clients inside are led to its listener,
// with the endpoints of the cluster, those outside to another one, with local ones.
func apart(b service.Binding, outside uint16) []service.Binding {
	in, out := b, b
	in.Portal.Clients = service.Inside
	out.Portal.Clients, out.Portal.Scope = service.Outside, service.Local
	out.Listener = netip.AddrPortFrom(b.Listener.Addr(), outside)
	return []service.Binding{in, out}
}

// policies is a Service with externalTrafficPolicy Local, and one with
// internalTrafficPolicy Local.
func policies() redirect.Rules {
	internal := binding("shop/near", service.TCP, service.ClusterIP, "10.96.0.11", 80, 40003)
	internal.Portal.Scope = service.Local
	bindings := []service.Binding{internal}
	for _, b := range []service.Binding{
		binding("shop/web:http", service.TCP, service.LoadBalancer, "198.51.100.1", 80, 40001),
		binding("shop/web:http", service.TCP, service.ExternalIP, "203.0.113.9", 80, 40001),
		binding("shop/web:http", service.TCP, service.NodePort, "", 30080, 40001),
		binding("shop/web:http", service.TCP, service.LoadBalancer, "2001:db8:1::1", 80, 40001),
		binding("shop/web:http", service.TCP, service.ExternalIP, "2001:db8:2::9", 80, 40001),
		inIPv6(binding("shop/web:http", service.TCP, service.NodePort, "", 30080, 40001)),
	} {
		bindings = append(bindings, apart(b, 40002)...)
	}
	return redirect.Rules{Bindings: bindings, Pods: redirect.PodTraffic{CIDRs: cidrs("10.244.0.0/16", "fd00:10:244::/56"), Interface: "cali+"}}
}

func cidrs(texts ...string) []netip.Prefix {
	var parsed []netip.Prefix
	for _, text := range texts {
		parsed = append(parsed, netip.MustParsePrefix(text))
	}
	return parsed
}

// Addresses of Services. Those that are of no machine are led to the node by the
// router.
const (
	balancerIP, balancerIPv6   = "10.96.1.10", "fd00:10:96::20"
	externalIP, externalIPv6   = "10.96.200.1", "fd00:10:96::200"
	nodeOtherIP, nodeOtherIPv6 = lab.NodeSecondIP, "fd00:172:20:1::5"
)

// serveApart opens listeners for clients inside and outside, and leads portals of
// every kind to them.
func (c *cluster) serveApart() redirect.Rules {
	var want redirect.Rules
	add := func(b service.Binding, outside uint16) { want.Bindings = append(want.Bindings, apart(b, outside)...) }
	in4, out4 := c.serve(c.Node, "0.0.0.0:0", "inside"), c.serve(c.Node, "0.0.0.0:0", "outside")
	in6, out6 := c.serve(c.Node, "[::]:0", "inside"), c.serve(c.Node, "[::]:0", "outside")
	for kind, addrs := range map[service.Kind][][2]string{
		service.LoadBalancer: {{balancerIP, balancerIPv6}},
		service.ExternalIP:   {{externalIP, externalIPv6}, {nodeOtherIP, nodeOtherIPv6}},
	} {
		for _, a := range addrs {
			add(binding("shop/web", service.TCP, kind, a[0], 80, in4), out4)
			add(binding("shop/web", service.TCP, kind, a[1], 80, in6), out6)
		}
	}
	add(binding("shop/web", service.TCP, service.NodePort, "", 30080, in4), out4)
	add(inIPv6(binding("shop/web", service.TCP, service.NodePort, "", 30080, in6)), out6)
	return want
}

func TestClientsInsideAndOutsideReachDifferentListeners(t *testing.T) {
	const inside, outside = "inside", "outside"
	both := cidrs("10.244.0.0/16", "fd00:10:244::/56")
	cases := []struct {
		name           string
		pods           redirect.PodTraffic
		pod4, pod6     string // what a pod of this node gets
		other4, other6 string // what a pod of the other node gets
	}{
		{"by addresses", redirect.PodTraffic{CIDRs: both}, inside, inside, inside, inside},
		{"by addresses of one family", redirect.PodTraffic{CIDRs: both[:1]}, inside, outside, inside, outside},
		{"by addresses of this node's pods", redirect.PodTraffic{CIDRs: cidrs("10.244.1.0/24", "fd00:10:244:1::/64")}, inside, inside, outside, outside},
		{"by bridge", redirect.PodTraffic{Interface: "cbr0"}, inside, inside, outside, outside},
		{"by names of interfaces", redirect.PodTraffic{Interface: "cbr+"}, inside, inside, outside, outside},
		{"by an interface that is not theirs", redirect.PodTraffic{Interface: "cali+"}, outside, outside, outside, outside},
		{"by either", redirect.PodTraffic{CIDRs: cidrs("10.244.2.0/24"), Interface: "cbr0"}, inside, inside, inside, outside},
		{"not at all", redirect.PodTraffic{}, outside, outside, outside, outside},
	}
	forEachBackend(t, func(t *testing.T, p *programs) {
		c := newClusterOf(t, lab.Config{Pods: 1})
		want := c.serveApart()
		r := c.open(redirect.Config{})
		for _, test := range cases {
			t.Run(test.name, func(t *testing.T) {
				want.Pods = test.pods
				c.sync(r, want)
				pod, other := c.Pod("client").Namespace, c.Pod("pod-d").Namespace
				expect := func(from *lab.Namespace, address, want string) {
					t.Helper()
					if got := ask(from, address, 0); got != want {
						t.Errorf("from %s to %s: %s, want %s", from.Name, address, got, want)
					}
				}
				each := func(addresses []string, pod1, pod2 string) {
					t.Helper()
					for _, address := range addresses {
						expect(pod, address, pod1)
						expect(other, address, pod2)
						expect(c.Node, address, inside)
						expect(c.Outside, address, outside)
					}
				}
				each([]string{lab.NodeIP + ":30080", balancerIP + ":80", externalIP + ":80", nodeOtherIP + ":80"}, test.pod4, test.other4)
				each([]string{"[" + lab.NodeIPv6 + "]:30080", "[" + balancerIPv6 + "]:80", "[" + externalIPv6 + "]:80", "[" + nodeOtherIPv6 + "]:80"}, test.pod6, test.other6)
			})
		}
	})
}

func TestBothListenersOfANodePortPassAFirewall(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		c := newCluster(t)
		for _, program := range []string{"iptables", "ip6tables"} {
			c.run(program + " -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT")
			c.run(program + " -A INPUT -p tcp -j REJECT --reject-with tcp-reset")
		}
		want := c.serveApart()
		want.Pods.Interface = "cbr0"
		c.sync(c.open(redirect.Config{}), want)
		for _, address := range []string{lab.NodeIP + ":30080", "[" + lab.NodeIPv6 + "]:30080"} {
			c.expect(c.Pod("client").Namespace, address, "inside")
			c.expect(c.Node, address, "inside")
			c.expect(c.Outside, address, "outside")
		}
	})
}

func TestAPortalIsOfOneServiceForAllClients(t *testing.T) {
	choose(t, "nft")
	shared := func(name string, listener uint16) service.Binding {
		return binding(name, service.TCP, service.NodePort, "", 30080, listener)
	}
	twice := func(kind service.Kind, listener uint16) []service.Binding {
		return apart(binding("shop/web", service.TCP, kind, "198.51.100.1", 80, listener), listener+1)
	}
	for name, c := range map[string]struct {
		bindings []service.Binding
		gone     int // the listener that nothing is to lead to
		stay     []int
	}{
		"anyone comes first": {append([]service.Binding{shared("shop/a", 40001)}, apart(shared("shop/b", 40002), 40002)...), 40002, []int{40001}},
		"inside comes first": {append(apart(shared("shop/b", 40001), 40002), shared("shop/a", 40003)), 40003, []int{40001, 40002}},
		"clusterIP and other": {append([]service.Binding{binding("shop/web", service.TCP, service.ClusterIP, "198.51.100.1", 80, 40001)},
			twice(service.ExternalIP, 40002)...), 40002, []int{40001}},
		"one portal, 2 times":  {append(twice(service.LoadBalancer, 40001), twice(service.LoadBalancer, 40003)...), 40003, []int{40001, 40002}},
		"one Service, 2 kinds": {append(twice(service.LoadBalancer, 40001), twice(service.ExternalIP, 40003)...), 40003, []int{40001, 40002}},
	} {
		n := newNode(t)
		n.sync(n.open(redirect.Config{}), redirect.Rules{Bindings: c.bindings, Pods: policies().Pods})
		saved := n.saved()
		if countLines(saved, fmt.Sprint(c.gone)) > 0 {
			t.Errorf("%s: a rule leads to the one that came later:\n%s", name, saved)
		}
		for _, port := range c.stay {
			if countLines(saved, fmt.Sprint(port)) == 0 {
				t.Errorf("%s: no rule leads to %d:\n%s", name, port, saved)
			}
		}
	}
}
