//go:build cluster

package main

import (
	"testing"
	"time"
)

const (
	cannotReach = "cannot reach the API server"
	readsAgain  = "reading from the API server again"
)

func TestClusterAPIServerCrashLosesNoConnection(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.serveAll("pod-a", "pod-b")
	s.create(serviceObjects, newService("web", "10.96.0.10", selecting))
	s.runPod("web", "web-1", podA)
	s.awaitReady("web", podA)
	p := s.start()

	load := askSteadily(t, s.client(), webAddress, 20*time.Millisecond)
	s.killAPI()
	eventually(t, func() error { return wantSaid(p, cannotReach, 1) })
	rules := s.ourRules()
	if len(rules) == 0 {
		t.Error("the rules are gone with the API server")
	}
	s.startAPI()
	s.runPod("web", "web-2", podB)
	s.setReady("web-1", false)
	s.awaitReady("web", podB)
	eventually(t, func() error { return answeredBy(s.cluster, webAddress, "pod-b") })
	soonOnly(t, s.Outside, webAddress, "pod-b")
	attempts := load.stop()
	t.Logf("%d connections while the API server was away", len(attempts))
	for _, a := range attempts {
		if a.err != nil || a.took > 2*time.Second {
			t.Errorf("lost: %v", a)
		}
	}
	eventually(t, func() error { return wantSaid(p, readsAgain, 1) })
	check(t, wantSaid(p, cannotReach, 1))
	if n := p.warnings(); n != 1 {
		t.Errorf("%d warnings, want the one that the API server cannot be reached:\n%s", n, p.said.text())
	}
}

func TestClusterThatIsNotUpYetIsWaitedForWithoutWritingRules(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.serveAll("pod-a")
	s.create(serviceObjects, newService("web", "10.96.0.10", selecting, nodePort(30080)))
	s.runPod("web", "web-1", podA)
	s.awaitReady("web", podA)
	s.killAPI()

	before := s.onNode("iptables-save")
	p := s.launch("")
	eventually(t, func() error { return wantSaid(p, cannotReach, 1) })
	time.Sleep(time.Second) // what must not happen has had time to
	if now := s.onNode("iptables-save"); now != before {
		t.Errorf("rules were written before anything was known:\n%s", now)
	}
	check(t, wantSaid(p, "msg=ready", 0))
	s.startAPI()
	p.waitReady()
	s.wantReached([]string{webAddress, "172.20.1.2:30080"}, "pod-a")
	check(t, wantSaid(p, readsAgain, 1))
}
