//go:build cluster

package main

import (
	"fmt"
	"testing"
	"time"
)

const (
	rolledPods = 20
	surge      = 4                      // pods that are replaced at a time
	lastWords  = 300 * time.Millisecond // a pod goes on serving after it was told to end
)

// rolledAddress is the address of the i-th pod ever made.
func rolledAddress(i int) string { return fmt.Sprintf("10.244.1.%d", 100+i) }

// rolledHost is the machine of the lab that has this address.
func (s *served) rolledHost(i int) string { return s.Pods[i%3].Name }

// runRolled makes the i-th pod: an address that answers, then a Pod that is ready.
func (s *served) runRolled(i int) {
	s.t.Helper()
	s.inPod(s.rolledHost(i), "ip", "address", "add", rolledAddress(i)+"/24", "dev", "eth0")
	s.runPod("web", fmt.Sprintf("web-%d", i), rolledAddress(i))
}

// rolled returns the addresses of the pods from the i-th to before the j-th.
func rolled(i, j int) []string {
	var all []string
	for ; i < j; i++ {
		all = append(all, rolledAddress(i))
	}
	return all
}

// replaceOldest makes as many new pods as surge, as a Deployment does, ends the oldest
// ones when the new ones are ready, and removes them and their addresses. The
// oldest is the i-th.
func (s *served) replaceOldest(i int) {
	s.t.Helper()
	for j := range surge {
		s.runRolled(i + rolledPods + j)
	}
	s.awaitReady("web", rolled(i, i+rolledPods+surge)...)
	for j := range surge {
		s.delete(fmt.Sprintf("%s/web-%d", podObjects, i+j))
	}
	s.awaitReady("web", rolled(i+surge, i+rolledPods+surge)...)
	time.Sleep(lastWords)
	for j := range surge {
		s.inPod(s.rolledHost(i+j), "ip", "address", "del", rolledAddress(i+j)+"/24", "dev", "eth0")
		s.removeByForce(fmt.Sprintf("web-%d", i+j))
	}
}

func TestClusterRollingUpdateLosesNoConnection(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.serveAll("pod-a", "pod-b", "pod-c")
	s.create(serviceObjects, newService("web", "10.96.0.10", selecting))
	for i := range rolledPods {
		s.runRolled(i)
	}
	s.awaitReady("web", rolled(0, rolledPods)...)
	p := s.start()

	began := time.Now()
	load := askSteadily(t, s.client(), webAddress, 20*time.Millisecond)
	for i := 0; i < rolledPods; i += surge {
		s.replaceOldest(i)
	}
	attempts := load.stop()
	t.Logf("%d connections while %d pods were replaced in %v", len(attempts), rolledPods, time.Since(began).Round(time.Millisecond))
	for _, a := range attempts {
		if a.err != nil || a.took > 2*time.Second {
			t.Errorf("lost: %v", a)
		}
	}
	backends := map[string]int{}
	for _, r := range p.records(len(attempts)) {
		backends[r.Backend]++
		if r.Attempts != 1 {
			t.Errorf("a pod that was gone was tried: %+v", r)
		}
	}
	for _, address := range rolled(rolledPods, 2*rolledPods) {
		if backends[address+":8080"] == 0 {
			t.Errorf("the new pod %s had no connection; they went to %v", address, backends)
		}
	}
}
