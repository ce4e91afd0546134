//go:build cluster

package main

import (
	"net/http"
	"syscall"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
)

func TestClusterStartTouchesNothingBeforeEverythingIsListed(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.serveAll("pod-a", "pod-b")
	s.create(serviceObjects, newService("web", "10.96.0.10", selecting, nodePort(30080)))
	s.create(serviceObjects, newService("old", "10.96.0.20", selecting))
	s.runPod("web", "web-1", podA)
	s.runPod("old", "old-1", podA)
	s.awaitReady("web", podA)
	s.awaitReady("old", podA)
	former := s.start()
	s.wantReached([]string{webAddress, "10.96.0.20:80"}, "pod-a")
	former.kill(syscall.SIGKILL)
	s.delete(serviceObjects + "/old")
	s.create(serviceObjects, newService("new", "10.96.0.30", selecting))
	s.runPod("new", "new-1", podB)
	s.awaitReady("new", podB)

	g := s.newGate()
	g.hold()
	rules := s.programs("nft")
	before, down := rules.saved(), time.Now()
	load := askSteadily(t, s.client(), webAddress, 100*time.Millisecond)
	p := s.launch("")
	s.awaitHealth(503, false)
	for range 10 { // what must not happen has time to
		time.Sleep(300 * time.Millisecond)
		if now := rules.saved(); now != before {
			t.Fatalf("while the API server had not answered, rules were changed from\n%s\nto\n%s", before, now)
		}
		s.awaitHealth(503, false)
	}
	check(t, wantSaid(p, "msg=ready", 0))
	g.open()
	p.waitReady()
	up := time.Now()
	s.awaitHealth(200, true)
	time.Sleep(3 * time.Second)
	checkGap(t, load.stop(), down, up.Add(time.Second))
	s.wantReached([]string{webAddress, "172.20.1.2:30080"}, "pod-a")
	s.wantReached([]string{"10.96.0.30:80"}, "pod-b")
	check(t, unserved(s.Outside, "10.96.0.20:80"))
	check(t, noRuleOf(s.cluster, "default/old:"))
}

func TestClusterWithoutAnySliceIsReady(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.create(serviceObjects, newService("web", "10.96.0.10"))
	var all discoveryv1.EndpointSliceList
	check(t, s.try(http.MethodGet, "/apis/discovery.k8s.io/v1/endpointslices", asJSON, nil, &all))
	if len(all.Items) != 0 {
		t.Fatalf("there are %d slices, want none for this test", len(all.Items))
	}
	p := s.start()
	s.awaitHealth(200, true)
	wantRefused(t, s.Outside, webAddress)
	if n := p.warnings(); n != 0 {
		t.Errorf("%d warnings, want none:\n%s", n, p.said.text())
	}
}
