package main

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// IPv6 addresses of the lab's pods.
const (
	podA6 = "fd00:10:244:1::11"
	podB6 = "fd00:10:244:1::12"
	podC6 = "fd00:10:244:1::13"
)

// withIPv6 gives a Service a second clusterIP.
func withIPv6(clusterIP string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP, clusterIP}
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	}
}

// ipv6 makes a slice one of IPv6 addresses.
func ipv6(s *discoveryv1.EndpointSlice) {
	s.Name += "-v6"
	s.AddressType = discoveryv1.AddressTypeIPv6
}

// everyWayIn6 is everyWayIn by IPv6 addresses.
func everyWayIn6(s *corev1.Service) {
	nodePort(30080)(s)
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.ExternalIPs = []string{"fd00:10:96::60"}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "fd00:10:96::50"}}
}

var waysIn6 = []string{"[fd00:10:96::10]:80", "[fd00:10:96::60]:80", "[fd00:10:96::50]:80", "[fd00:172:20:1::2]:30080"}

func TestIPv6ServiceWithoutReadyEndpointsIsRefusedAtOnceByEveryAddress(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.apply("web", newService("web", "fd00:10:96::10", everyWayIn6))
	c.start()
	for _, address := range waysIn6 {
		wantRefused(t, c.Outside, address)
	}
	rules := c.ourRules()

	c.apply("slice", newSlice("web", []string{podA6}, ipv6))
	for _, address := range waysIn6 {
		soon(t, c.Outside, address, "pod-a")
	}
	c.apply("slice", newSlice("web", []string{podA6}, ipv6, notReady))
	within(t, time.Second, func() error { return refused(c.Outside, waysIn6[0]) })
	for _, address := range waysIn6 {
		wantRefused(t, c.Outside, address)
	}
	if now := c.ourRules(); len(rules) == 0 || !slices.Equal(now, rules) {
		t.Errorf("a change of endpoints changed the rules from\n%v\nto\n%v", rules, now)
	}
}

func TestDualStackServiceLeadsEachFamilyToItsOwnEndpoints(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b", "pod-c")
	const by4, by6 = "10.96.0.10:80", "[fd00:10:96::10]:80"
	const byNode4, byNode6 = "172.20.1.2:30080", "[fd00:172:20:1::2]:30080"
	c.apply("web", newService("web", "10.96.0.10", withIPv6("fd00:10:96::10"), nodePort(30080)))
	c.apply("slice-v4", newSlice("web", []string{podA, podB}))
	c.apply("slice-v6", newSlice("web", []string{podB6, podC6}, ipv6))
	p := c.start()
	for _, address := range []string{by4, byNode4} {
		wantShares(t, c, address, 4, "pod-a", "pod-b")
	}
	for _, address := range []string{by6, byNode6} {
		wantShares(t, c, address, 4, "pod-b", "pod-c")
	}
	for _, r := range p.records(32) {
		if (r.Original[0] == '[') != (r.Backend[0] == '[') {
			t.Errorf("a client of %s was led to %s", r.Original, r.Backend)
		}
	}

	c.remove("slice-v6")
	within(t, time.Second, func() error { return refused(c.Outside, by6) })
	wantRefused(t, c.Outside, byNode6)
	wantShares(t, c, by4, 4, "pod-a", "pod-b")

	c.apply("slice-v6", newSlice("web", []string{podC6}, ipv6))
	soon(t, c.Outside, by6, "pod-c")
	c.apply("web", newService("web", "10.96.0.10", nodePort(30080)))
	within(t, time.Second, func() error { return unserved(c.Outside, by6) })
	wantRefused(t, c.Outside, byNode6)
	wantShares(t, c, byNode4, 4, "pod-a", "pod-b")
}
