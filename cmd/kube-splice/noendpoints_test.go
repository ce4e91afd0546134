package main

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// everyWayIn gives a Service an externalIP, a load balancer's address and a node
// port besides its clusterIP, and returns the addresses of all four.
func everyWayIn(s *corev1.Service) {
	nodePort(30080)(s)
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.ExternalIPs = []string{"10.96.0.60"}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.96.0.50"}}
}

var waysIn = []string{"10.96.0.10:80", "10.96.0.60:80", "10.96.0.50:80", "172.20.1.2:30080"}

func TestServiceWithoutReadyEndpointsIsRefusedAtOnceByEveryAddress(t *testing.T) {
	c := newCluster(t)
	c.serveAll("pod-a")
	c.apply("web", newService("web", "10.96.0.10", everyWayIn))
	c.start()
	for _, address := range waysIn {
		wantRefused(t, c.Outside, address)
	}
	rules := c.ourRules()

	c.apply("slice", newSlice("web", []string{podA}))
	within(t, time.Second, func() error { _, err := ask(c.Outside, waysIn[0]); return err })
	for _, address := range waysIn {
		if who, err := ask(c.Outside, address); who != "pod-a" {
			t.Errorf("%s: answered by %q (%v), want pod-a", address, who, err)
		}
	}

	slice := newSlice("web", []string{podA})
	*slice.Endpoints[0].Conditions.Ready = false
	c.apply("slice", slice)
	within(t, time.Second, func() error { return refused(c.Outside, waysIn[0]) })
	for _, address := range waysIn {
		wantRefused(t, c.Outside, address)
	}
	if now := c.ourRules(); len(rules) == 0 || len(now) != len(rules) {
		t.Errorf("a change of endpoints changed the rules from\n%v\nto\n%v", rules, now)
	}
}
