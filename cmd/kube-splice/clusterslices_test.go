//go:build cluster

package main

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// createSlice creates an EndpointSlice by hand, for a Service without selector.
func (s *served) createSlice(service, name string, addresses []string, edit ...func(*discoveryv1.EndpointSlice)) {
	s.t.Helper()
	slice := newSlice(service, addresses, edit...)
	slice.Name = name
	s.create(sliceObjects, slice)
}

func TestClusterSlicesOfAServiceAreMerged(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	// pod-c has a whole network of addresses; every server tells what it was asked by.
	const network = "10.245.1.0/24"
	s.inPod("pod-c", "ip", "route", "add", "local", network, "dev", "lo")
	s.onNode("ip", "route", "add", network, "via", podC)
	asked := func(address netip.AddrPort) string { return address.String() }
	for _, pod := range []string{"pod-a", "pod-b", "pod-c"} {
		s.serveAs(s.Pod(pod).Namespace, 8080, asked)
	}
	s.serveAs(s.Pod("pod-a").Namespace, 8081, asked)
	p := s.start()
	s.wantManySlicesMerged()
	s.wantTwoPortsApart()
	s.wantNewestSliceBelieved()
	if n := p.warnings(); n != 0 {
		t.Errorf("%d warnings, want none:\n%s", n, p.said.text())
	}
}

func (s *served) wantManySlicesMerged() {
	s.t.Helper()
	var addresses, names []string
	for i := range 250 {
		addresses = append(addresses, fmt.Sprintf("10.245.1.%d", i+1))
		names = append(names, addresses[i]+":8080")
	}
	s.create(serviceObjects, newService("many", "10.96.0.11"))
	s.createSlice("many", "many-1", addresses[:100])
	s.createSlice("many", "many-2", addresses[100:200])
	s.createSlice("many", "many-3", addresses[200:])
	const address = "10.96.0.11:80"
	within(s.t, patience, func() error { return answeredBy(s.cluster, address, names[249]) }) // of the last slice
	wantShares(s.t, s.cluster, address, 1, names...)

	s.delete(sliceObjects + "/many-2")
	rest := append(append([]string{}, names[:100]...), names[200:]...)
	within(s.t, patience, func() error { return onlyFrom(s.cluster, address, rest) })
	wantShares(s.t, s.cluster, address, 1, rest...)
}

func (s *served) wantTwoPortsApart() {
	s.t.Helper()
	s.create(serviceObjects, newService("ports", "10.96.0.12"))
	s.createSlice("ports", "ports-1", []string{podA})
	s.createSlice("ports", "ports-copy", []string{podA})
	s.createSlice("ports", "ports-2", []string{podA}, slicePort(8081))
	soon(s.t, s.Outside, "10.96.0.12:80", podA+":8081")
	wantShares(s.t, s.cluster, "10.96.0.12:80", 20, podA+":8080", podA+":8081")
}

// A pod moves to another slice while it is not ready, before the old slice drops it.
func (s *served) wantNewestSliceBelieved() {
	s.t.Helper()
	const address, a, b = "10.96.0.13:80", podA + ":8080", podB + ":8080"
	s.create(serviceObjects, newService("moved", "10.96.0.13"))
	s.createSlice("moved", "moved-z", []string{podA, podB})
	soon(s.t, s.Outside, address, a)
	wantShares(s.t, s.cluster, address, 5, a, b)

	s.createSlice("moved", "moved-m", []string{podA}, notReady)
	within(s.t, patience, func() error { return onlyFrom(s.cluster, address, []string{b, b, b, b}) })
	wantShares(s.t, s.cluster, address, 10, b)
	s.patch(sliceObjects+"/moved-z", `{"endpoints":[{"addresses":["`+podB+`"],"conditions":{"ready":true}}]}`)
	time.Sleep(time.Second) // nothing tells when a change without effect is live
	wantShares(s.t, s.cluster, address, 10, b)
	s.patch(sliceObjects+"/moved-m", `{"endpoints":[{"addresses":["`+podA+`"],"conditions":{"ready":true}}]}`)
	soon(s.t, s.Outside, address, a)
	wantShares(s.t, s.cluster, address, 5, a, b)
}
