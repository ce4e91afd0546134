package main

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// sliceNamed names a slice and gives it the resourceVersion of its last change.
func sliceNamed(name, version string) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) { s.Name, s.ResourceVersion = name, version }
}

// slicePort makes the endpoints of a slice listen elsewhere than on 8080.
func slicePort(number int32) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = &number }
}

// notReady marks every endpoint of a slice.
func notReady(s *discoveryv1.EndpointSlice) {
	for i := range s.Endpoints {
		s.Endpoints[i].Conditions.Ready = new(false)
	}
}

// wantShares asks until each of the names must have answered share times.
func wantShares(t testing.TB, c *cluster, address string, share int, names ...string) {
	t.Helper()
	count := answers(t, c.Outside, address, share*len(names))
	for _, name := range names {
		if count[name] != share {
			t.Errorf("%s answered %d times, want %d; all answers: %v", name, count[name], share, count)
		}
	}
}

func TestEveryEndpointOfManySlicesIsUsedInTurn(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	// pod-a has a whole network of addresses and answers by the one that was asked.
	const network = "10.245.1.0/24"
	c.inPod("pod-a", "ip", "route", "add", "local", network, "dev", "lo")
	c.onNode("ip", "route", "add", network, "via", podA)
	c.serveAs(c.Pod("pod-a").Namespace, 8080, func(asked netip.AddrPort) string { return asked.Addr().String() })

	var addresses []string
	for i := range 250 {
		addresses = append(addresses, fmt.Sprintf("10.245.1.%d", i+1))
	}
	c.apply("web", newService("web", "10.96.0.10"))
	c.apply("slice-1", newSlice("web", addresses[:100]))
	c.apply("slice-2", newSlice("web", addresses[100:200], sliceNamed("web-2", "")))
	c.apply("slice-3", newSlice("web", addresses[200:], sliceNamed("web-3", "")))
	c.start()
	wantShares(t, c, webAddress, 1, addresses...)

	c.remove("slice-2")
	rest := slices.Concat(addresses[:100], addresses[200:])
	within(t, time.Second, func() error { return onlyFrom(c, webAddress, rest) })
	wantShares(t, c, webAddress, 1, rest...)
}

// onlyFrom asks as often as there are names and tells whether just these answer.
func onlyFrom(c *cluster, address string, names []string) error {
	for range names {
		who, err := ask(c.Outside, address)
		if err != nil {
			return err
		}
		if !slices.Contains(names, who) {
			return fmt.Errorf("%s is answered by %s", address, who)
		}
	}
	return nil
}

func TestEndpointIsAnAddressWithAPort(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	byPort := func(asked netip.AddrPort) string { return asked.String() }
	for _, number := range []int{8080, 8081} {
		c.serveAs(c.Pod("pod-a").Namespace, number, byPort)
	}
	// Each endpoint twice, once in a slice of its own and once beside a copy.
	c.apply("web", newService("web", "10.96.0.10"),
		newSlice("web", []string{podA, podA}), newSlice("web", []string{podA}, sliceNamed("web-again", "")),
		newSlice("web", []string{podA}, sliceNamed("web-other", ""), slicePort(8081)))
	c.start()
	wantShares(t, c, webAddress, 20, podA+":8080", podA+":8081")
}

func TestEndpointInSeveralSlicesHasOneShareAndTheNewestConditions(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b")
	c.apply("web", newService("web", "10.96.0.10"))
	// The names sort the other way round, so that only the versions tell the age.
	before := func(pods ...string) { c.apply("slice-old", newSlice("web", pods, sliceNamed("web-z", "99"))) }
	before(podA, podB)
	c.start()
	wantShares(t, c, webAddress, 5, "pod-a", "pod-b")

	c.apply("slice-new", newSlice("web", []string{podA}, sliceNamed("web-m", "100")))
	time.Sleep(200 * time.Millisecond) // nothing tells when a change without effect is live
	wantShares(t, c, webAddress, 10, "pod-a", "pod-b")

	c.apply("slice-new", newSlice("web", []string{podA}, sliceNamed("web-m", "101"), notReady))
	within(t, time.Second, func() error { return onlyFrom(c, webAddress, []string{"pod-b", "pod-b"}) })
	wantShares(t, c, webAddress, 10, "pod-b")
	before(podB)
	time.Sleep(200 * time.Millisecond)
	wantShares(t, c, webAddress, 10, "pod-b")

	c.apply("slice-new", newSlice("web", []string{podA}, sliceNamed("web-m", "102")))
	soon(t, c.Outside, webAddress, "pod-a")
	wantShares(t, c, webAddress, 5, "pod-a", "pod-b")
}
