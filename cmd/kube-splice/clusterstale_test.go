//go:build cluster

package main

import (
	"strings"
	"testing"
	"time"
)

// serveTwo creates two Services, "web" and "gone", of pod-a.
func (s *served) serveTwo() {
	s.t.Helper()
	s.serveAll("pod-a", "pod-b")
	for name, address := range map[string]string{"web": "10.96.0.10", "gone": "10.96.0.20"} {
		s.create(serviceObjects, newService(name, address, selecting))
		s.runPod(name, name+"-1", podA)
		s.awaitReady(name, podA)
	}
}

// changeTwo deletes "gone", moves "web" to pod-b and adds "new".
func (s *served) changeTwo() {
	s.t.Helper()
	s.delete(serviceObjects + "/gone")
	s.runPod("web", "web-2", podB)
	s.setReady("web-1", false)
	s.create(serviceObjects, newService("new", "10.96.0.30", selecting))
	s.runPod("new", "new-1", podB)
	s.awaitReady("web", podB)
	s.awaitReady("new", podB)
}

// wantTwoChanged waits until all of that is in force.
func (s *served) wantTwoChanged(limit time.Duration) {
	s.t.Helper()
	within(s.t, limit, func() error { return noRuleOf(s.cluster, "default/gone:") })
	within(s.t, patience, func() error { return unserved(s.Outside, "10.96.0.20:80") })
	for _, address := range []string{webAddress, "10.96.0.30:80"} {
		within(s.t, patience, func() error { return answeredBy(s.cluster, address, "pod-b") })
		soonOnly(s.t, s.Outside, address, "pod-b")
	}
}

// The API server that comes back remembers no change from before its start.
func TestClusterChangesThatTheAPIServerForgotAreListed(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	g := s.newGate()
	p := s.start("-v", "4")
	s.serveTwo() // a watch that saw changes is taken up where it ended, if that can be
	s.wantReached([]string{webAddress, "10.96.0.20:80"}, "pod-a")

	g.hold()
	g.cut()
	s.changeTwo()
	s.killAPI()
	s.startAPI()
	wantAnswer(t, s.Outside, webAddress, "pod-a")
	wantAnswer(t, s.Outside, "10.96.0.20:80", "pod-a")
	g.open()
	s.wantTwoChanged(time.Minute)
	if !strings.Contains(p.said.text(), "too old resource version") {
		t.Error("the API server did not refuse to go on from where the watches had ended")
	}
}

// longestSilence is how long a connection that died without a word may go unnoticed,
// and then the first wait before another try: see source.Kubernetes.
const longestSilence = 45*time.Second + 2*time.Second

func TestClusterConnectionThatDiedWithoutAWordIsNoticed(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	g := s.newGate()
	p := s.start()
	s.serveTwo()
	s.wantReached([]string{webAddress, "10.96.0.20:80"}, "pod-a")

	g.lose()
	s.changeTwo()
	wantAnswer(t, s.Outside, webAddress, "pod-a")
	wantAnswer(t, s.Outside, "10.96.0.20:80", "pod-a")
	s.wantTwoChanged(longestSilence + patience)
	s.delete(serviceObjects + "/new")
	within(t, patience, func() error { return unserved(s.Outside, "10.96.0.30:80") })
	p.running()
}
