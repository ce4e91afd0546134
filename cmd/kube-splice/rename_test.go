package main

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// portNamed names a Service's port.
func portNamed(name string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports[0].Name = name }
}

// endpointsNamed names a slice's port.
func endpointsNamed(name string) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name = &name }
}

func TestRenamedPortKeepsConnectionsAndRefusesOnlyUntilTheOtherObjectFollows(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	const address = "10.96.0.10:80"
	service := func(name string) { c.apply("service", newService("web", "10.96.0.10", portNamed(name))) }
	slice := func(name string) { c.apply("slice", newSlice("web", []string{podA}, endpointsNamed(name))) }
	service("http")
	slice("http")
	c.start()
	held := hold(t, c.Outside, address)
	stillHeld := func() {
		t.Helper()
		if _, err := held.ask(); err != nil {
			t.Errorf("the connection from before the renaming: %v", err)
		}
	}

	orders := []struct{ first, then func(string) }{{service, slice}, {slice, service}}
	names := []string{"www", "web"} // the name "" is an unnamed port's
	for i, order := range orders {
		order.first(names[i])
		within(t, time.Second, func() error { return refused(c.Outside, address) })
		for range 10 { // nothing hangs during the gap
			wantRefused(t, c.Outside, address)
			stillHeld()
			time.Sleep(50 * time.Millisecond)
		}
		order.then(names[i])
		soon(t, c.Outside, address, "pod-a")
		stillHeld()
	}
	service("")
	slice("")
	within(t, time.Second, func() error {
		if rules := rulesOf(c, `"default/web"`); len(rules) == 0 {
			return fmt.Errorf("no rules of the unnamed port: %v", c.ourRules())
		}
		return nil
	})
	soon(t, c.Outside, address, "pod-a")
	stillHeld()
}
