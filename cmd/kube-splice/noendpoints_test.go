package main

import (
	"fmt"
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

func TestTerminatingPodsServeUntilAnotherOneIsReady(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b")
	draining := newSlice("web", []string{podA, podB})
	for i := range draining.Endpoints {
		no, yes := false, true
		draining.Endpoints[i].Conditions.Ready, draining.Endpoints[i].Conditions.Terminating = &no, &yes
	}
	serving := true
	draining.Endpoints[0].Conditions.Serving = &serving
	gone := false
	draining.Endpoints[1].Conditions.Serving = &gone
	c.apply("web", newService("web", "10.96.0.10"), draining)
	c.start()
	if n := answers(t, c.Outside, waysIn[0], 4); n["pod-a"] != 4 {
		t.Errorf("answered by %v, want the one that serves while it terminates", n)
	}
	draining.Endpoints[1].Conditions.Ready, draining.Endpoints[1].Conditions.Terminating = &serving, &gone
	c.apply("web", newService("web", "10.96.0.10"), draining)
	within(t, time.Second, func() error {
		if who, err := ask(c.Outside, waysIn[0]); who != "pod-b" {
			return fmt.Errorf("answered by %q (%v), want the one that is ready", who, err)
		}
		return nil
	})
	if n := answers(t, c.Outside, waysIn[0], 4); n["pod-b"] != 4 {
		t.Errorf("answered by %v, want only the one that is ready", n)
	}
}
