//go:build cluster

package main

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// createManual creates a Service without selector and a slice with pod-a.
func (s *served) createManual(name, address string) {
	s.t.Helper()
	s.create(serviceObjects, newService(name, address))
	s.createSlice(name, name+"-1", []string{podA})
}

func TestClusterServicesThatAreNotForAProxyAreSkippedQuietly(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.serveAll("pod-a")
	s.createManual("web", "10.96.0.10")
	p := s.start("--iptables-sync-period", "1s")
	wantAnswer(t, s.Outside, webAddress, "pod-a")
	listeners := s.listening()

	s.create(serviceObjects, newService("headless", "", headless, selecting))
	s.runPod("headless", "headless-1", podA)
	s.awaitReady("headless", podA)
	s.create(serviceObjects, newService("external", "", externalName))
	s.create(serviceObjects, newService("sctp", "10.96.0.13", sctp))
	s.createSlice("sctp", "sctp-1", []string{podA})
	// Several rounds of rule syncs, and of Snapshots that carry these Services along.
	for i := range 4 {
		s.createManual(fmt.Sprintf("more-%d", i), fmt.Sprintf("10.96.0.2%d", i))
		soon(t, s.Outside, fmt.Sprintf("10.96.0.2%d:80", i), "pod-a")
		time.Sleep(500 * time.Millisecond)
		s.delete(fmt.Sprintf("%s/more-%d", serviceObjects, i))
	}
	for _, name := range []string{"headless", "external", "sctp"} {
		check(t, noRuleOf(s.cluster, "default/"+name))
	}
	within(t, patience, func() error {
		if now := s.listening(); !slices.Equal(now, listeners) {
			return fmt.Errorf("listening on %v, before these Services on %v", now, listeners)
		}
		return nil
	})
	wantNotices(t, p, "SCTP", 1)
	if n := p.warnings(); n != 1 {
		t.Errorf("%d warnings, want the one of SCTP:\n%s", n, p.said.text())
	}
}

func TestClusterTypeOfLiveServiceChangesBothWays(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.serveAll("pod-a")
	s.createManual("web", "10.96.0.10")
	p := s.start()
	const byNode, byBalancer = "172.20.1.2:30080", "10.96.0.50:80"
	wantAnswer(t, s.Outside, webAddress, "pod-a")
	old := hold(t, s.Outside, webAddress)
	become := func(spec string) { t.Helper(); s.patch(serviceObjects+"/web", `{"spec":{`+spec+`}}`) }
	served := func(addresses ...string) {
		t.Helper()
		for _, address := range addresses {
			soon(t, s.Outside, address, "pod-a")
		}
	}
	gone := func(addresses ...string) {
		t.Helper()
		for _, address := range addresses {
			within(t, time.Second, func() error { return unserved(s.Outside, address) })
		}
	}
	for range 2 {
		become(`"type":"NodePort","ports":[{"name":"http","port":80,"nodePort":30080}]`)
		served(webAddress, byNode)
		become(`"type":"LoadBalancer"`)
		s.patch(serviceObjects+"/web/status", `{"status":{"loadBalancer":{"ingress":[{"ip":"10.96.0.50"}]}}}`)
		served(webAddress, byNode, byBalancer)
		become(`"type":"ClusterIP"`)
		gone(byNode, byBalancer)
		served(webAddress)
		become(`"type":"ExternalName","externalName":"web.example.org"`)
		gone(webAddress)
		within(t, time.Second, func() error { return noRuleOf(s.cluster, "default/web:") })
		become(`"type":"ClusterIP","externalName":null,"clusterIP":"10.96.0.10"`)
		served(webAddress)
	}
	if who, err := old.ask(); who != "pod-a" {
		t.Errorf("the connection made before the changes is answered by %q (%v)", who, err)
	}
	if n := p.warnings(); n != 0 {
		t.Errorf("%d warnings, want none:\n%s", n, p.said.text())
	}
}
