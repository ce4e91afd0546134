package main

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// wayIn is an address of a Service and the machines that must be served at it.
type wayIn struct {
	address string
	from    []*lab.Namespace
}

// wantServed asks from everywhere, and demands that the connection log has just the
// addresses that were asked.
func wantServed(c *cluster, p *program, ways []wayIn, pod string) {
	c.t.Helper()
	asked := map[string]int{}
	total := 0
	for _, way := range ways {
		for _, from := range way.from {
			wantAnswer(c.t, from, way.address, pod)
			asked[way.address]++
			total++
		}
	}
	for _, r := range p.records(total) {
		asked[r.Original]--
	}
	for address, n := range asked {
		if n != 0 {
			c.t.Errorf("%s is missing %d times from the connection log, as the address asked", address, n)
		}
	}
}

func TestServiceIsReachedByEveryAddressFromEverywhere(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.apply("web", newService("web", "10.96.0.10", everyWayIn, externalIPs("10.96.0.60", lab.NodeSecondIP)),
		newSlice("web", []string{podA}))
	p := c.start()
	everywhere := []*lab.Namespace{c.client(), c.Node, c.Outside, c.Pod("pod-a").Namespace}
	wantServed(c, p, []wayIn{
		{"10.96.0.10:80", everywhere},
		{"10.96.0.50:80", everywhere},
		{"10.96.0.60:80", everywhere}, // an externalIP that is not the node's
		{"172.20.1.5:80", everywhere}, // one that is
		{"172.20.1.2:30080", everywhere},
		{"172.20.1.5:30080", everywhere},
		{"10.244.1.1:30080", everywhere},
		{"127.0.0.1:30080", []*lab.Namespace{c.Node}},
		{"127.0.0.2:30080", []*lab.Namespace{c.Node}},
	}, "pod-a")
}

func TestIPv6ServiceIsReachedByEveryAddressFromEverywhere(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.apply("web", newService("web", "fd00:10:96::10", everyWayIn6, externalIPs("fd00:10:96::60", "fd00:172:20:1::5")),
		newSlice("web", []string{podA6}, ipv6))
	p := c.start()
	everywhere := []*lab.Namespace{c.client(), c.Node, c.Outside, c.Pod("pod-a").Namespace}
	wantServed(c, p, []wayIn{
		{"[fd00:10:96::10]:80", everywhere},
		{"[fd00:10:96::50]:80", everywhere},
		{"[fd00:10:96::60]:80", everywhere},
		{"[fd00:172:20:1::5]:80", everywhere},
		{"[fd00:172:20:1::2]:30080", everywhere},
		{"[fd00:172:20:1::5]:30080", everywhere},
		{"[fd00:10:244:1::1]:30080", everywhere},
		{"[::1]:30080", []*lab.Namespace{c.Node}},
	}, "pod-a")
}

// balancedAt makes a Service of type LoadBalancer with one ingress address.
func balancedAt(ip string, mode *corev1.LoadBalancerIPMode) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip, IPMode: mode}}
	}
}

func TestLoadBalancerThatIsToSeeItsClientsIsNotPassedBy(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.serveAs(c.Outside, 80, named("load-balancer"))
	const address = lab.OutsideIP + ":80"
	mode := func(m corev1.LoadBalancerIPMode) *corev1.LoadBalancerIPMode { return &m }
	inside := []*lab.Namespace{c.client(), c.Node}

	c.apply("slice", newSlice("web", []string{podA}))
	c.apply("web", newService("web", "10.96.0.10", balancedAt(lab.OutsideIP, mode(corev1.LoadBalancerIPModeProxy))))
	c.start()
	for _, from := range inside {
		wantAnswer(t, from, address, "load-balancer")
		wantAnswer(t, from, webAddress, "pod-a")
	}
	for _, m := range []*corev1.LoadBalancerIPMode{nil, mode(corev1.LoadBalancerIPModeProxy), mode(corev1.LoadBalancerIPModeVIP)} {
		c.apply("web", newService("web", "10.96.0.10", balancedAt(lab.OutsideIP, m)))
		want := "pod-a"
		if m != nil && *m == corev1.LoadBalancerIPModeProxy {
			want = "load-balancer"
		}
		for _, from := range inside {
			soon(t, from, address, want)
		}
	}
}

// As in kube-proxy. The historical one left such an address to that machine.
func TestExternalIPOfAnotherMachineLeadsToTheService(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.serveAs(c.Outside, 80, named("its-owner"))
	c.apply("web", newService("web", "10.96.0.10", externalIPs(lab.OutsideIP)), newSlice("web", []string{podA}))
	c.start()
	for _, from := range []*lab.Namespace{c.client(), c.Node} {
		wantAnswer(t, from, lab.OutsideIP+":80", "pod-a")
	}
	c.apply("web", newService("web", "10.96.0.10"))
	for _, from := range []*lab.Namespace{c.client(), c.Node} {
		soon(t, from, lab.OutsideIP+":80", "its-owner")
	}
}

func TestExternalIPsAreNotServedWhereTheirGateIsOff(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"by flag": {"--feature-gates", "AllowServiceExternalIPs=false"},
		"by file": {"--config", writeConfig(t, "featureGates: {AllowServiceExternalIPs: false}")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.serveAll("pod-a")
			c.serveAs(c.Outside, 80, named("its-owner"))
			c.apply("web", newService("web", "10.96.0.10", nodePort(30080), externalIPs(lab.OutsideIP, lab.NodeSecondIP)), newSlice("web", []string{podA}))
			p := c.start(args...)
			for _, from := range []*lab.Namespace{c.client(), c.Node} {
				wantAnswer(t, from, webAddress, "pod-a")
				wantAnswer(t, from, lab.NodeIP+":30080", "pod-a")
				wantAnswer(t, from, lab.OutsideIP+":80", "its-owner")
				wantRefused(t, from, lab.NodeSecondIP+":80")
			}
			if err := wantSaid(p, "externalIPs, which are not served", 1); err != nil {
				t.Error(err)
			}
			if err := wantSaid(p, "settings without a meaning here", 0); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNodePortsAnswerOnlyOnTheAddressesTheyAreGiven(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.apply("web", newService("web", "10.96.0.10", nodePort(30080)), newSlice("web", []string{podA}))
	c.start("--nodeport-addresses", "172.20.1.5/32, localhost")
	wantAnswer(t, c.Outside, "172.20.1.5:30080", "pod-a")
	wantAnswer(t, c.Node, "127.0.0.1:30080", "pod-a")
	wantRefused(t, c.Outside, "172.20.1.2:30080")
	wantRefused(t, c.client(), "10.244.1.1:30080")
}

func TestPodReachesItselfThroughItsOwnService(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b")
	c.apply("web", newService("web", "10.96.0.10", withIPv6("fd00:10:96::10"), nodePort(30080)),
		newSlice("web", []string{podA}), newSlice("web", []string{podA6}, ipv6))
	p := c.start()
	own := c.Pod("pod-a")
	addresses := []string{webAddress, "172.20.1.2:30080", "[fd00:10:96::10]:80", "[fd00:172:20:1::2]:30080"}
	for _, address := range addresses {
		wantAnswer(t, own.Namespace, address, "pod-a")
	}
	for _, r := range p.records(len(addresses)) {
		if r.Backend != podA+":8080" && r.Backend != "["+podA6+"]:8080" || r.Attempts != 1 {
			t.Errorf("led to %s in %d attempts", r.Backend, r.Attempts)
		}
	}
	// One of two endpoints: it is itself every second time.
	c.apply("web", newService("web", "10.96.0.10"), newSlice("web", []string{podA, podB}))
	within(t, time.Second, func() error { return answeredBy(c, webAddress, "pod-b") })
	if count := answers(t, own.Namespace, webAddress, 10); count["pod-a"] != 5 || count["pod-b"] != 5 {
		t.Errorf("pod-a is answered by %v", count)
	}
}
