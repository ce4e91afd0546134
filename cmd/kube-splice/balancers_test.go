package main

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// balancedBy asks for a balancing policy.
func balancedBy(policy string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Annotations = map[string]string{"kube-splice.io/balancer": policy} }
}

func TestRoundRobinGivesEveryPodItsTurn(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b", "pod-c")
	c.publish(podA, podB, podC)
	c.start()
	var who []string
	for i := range 30 {
		from := []*lab.Namespace{c.Outside, c.client(), c.Node}[i%3] // whoever asks
		pod, err := ask(from, webAddress)
		check(t, err)
		who = append(who, pod)
	}
	turn := slices.Sorted(slices.Values(who[:3]))
	if !slices.Equal(turn, []string{"pod-a", "pod-b", "pod-c"}) {
		t.Errorf("the first turn is of %v", who[:3])
	}
	for i, pod := range who {
		if pod != who[i%3] {
			t.Fatalf("the turns are not all alike: %v", who)
		}
	}
}

// wantLeastConnections demands of a Service whose only endpoint is pod-a that it
// balances by connections when it gets all three.
func wantLeastConnections(c *cluster, name, address string, service *corev1.Service) {
	c.t.Helper()
	var long []*held
	for range 3 {
		long = append(long, hold(c.t, c.Outside, address))
		wantHeldBy(c.t, long[len(long)-1], "pod-a")
	}
	c.apply(name, service, newSlice(name, []string{podA, podB, podC}))
	within(c.t, time.Second, func() error { return answeredBy(c, address, "pod-c") })
	check(c.t, onlyFrom(c, address, []string{"pod-b", "pod-c", "pod-b", "pod-c", "pod-b", "pod-c"}))
	count := map[string]int{}
	for range 6 {
		h := hold(c.t, c.Outside, address)
		who, err := h.ask()
		check(c.t, err)
		count[who]++
	}
	if count["pod-b"] != 3 || count["pod-c"] != 3 {
		c.t.Errorf("%s: with 3 connections on pod-a, 6 more were held by %v, want 3 each by the others", name, count)
	}
	for _, h := range long {
		check(c.t, h.Close())
	}
	within(c.t, time.Second, func() error { return answeredBy(c, address, "pod-a") })
	for range 2 {
		wantHeldBy(c.t, hold(c.t, c.Outside, address), "pod-a")
	}
}

func wantHeldBy(t testing.TB, h *held, pod string) {
	t.Helper()
	if who, err := h.ask(); who != pod {
		t.Errorf("a connection is held by %q (%v), want %s", who, err, pod)
	}
}

func TestLeastConnectionsPassesOverABusyPod(t *testing.T) {
	t.Parallel()
	byFlag, byAnnotation := newService("web", "10.96.0.10"), newService("web", "10.96.0.10", balancedBy("least-connections"))
	for name, test := range map[string]struct {
		args    []string
		service *corev1.Service
	}{
		"flag":       {[]string{"--balancer", "least-connections"}, byFlag},
		"IPVS flag":  {[]string{"--balancer", "lc"}, byFlag},
		"annotation": {nil, byAnnotation},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.serveAll("pod-a", "pod-b", "pod-c")
			c.apply("web", test.service, newSlice("web", []string{podA}))
			c.start(test.args...)
			wantLeastConnections(c, "web", webAddress, test.service)
		})
	}
}

func TestAnnotationGoesBeforeTheFlagAndCanBeChanged(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b")
	c.apply("slice", newSlice("web", []string{podA, podB}))
	c.apply("web", newService("web", "10.96.0.10", balancedBy("rr")))
	p := c.start("--balancer", "source-hash")
	wantShares(t, c, webAddress, 5, "pod-a", "pod-b")

	differ := func(want bool) error {
		first, err := ask(c.Outside, webAddress)
		check(t, err)
		second, err := ask(c.Outside, webAddress)
		check(t, err)
		if (first != second) != want {
			return fmt.Errorf("answered by %s and then by %s", first, second)
		}
		return nil
	}
	c.apply("web", newService("web", "10.96.0.10"))
	within(t, time.Second, func() error { return differ(false) })
	for range 5 {
		check(t, differ(false))
	}
	c.apply("web", newService("web", "10.96.0.10", balancedBy("round-robin")))
	within(t, time.Second, func() error { return differ(true) })
	c.apply("web", newService("web", "10.96.0.10", balancedBy("nonsense")))
	within(t, time.Second, func() error { return differ(false) })
	wantNotices(t, p, "nonsense", 1)
}

// How a policy spreads connections.
const (
	onOnePod = "on one pod"
	inTurn   = "in turn"
	byNumber = "by the number of connections"
)

func TestIPVSSchedulersAreKnownByName(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b", "pod-c")
	c.publish(podA, podB, podC)
	for scheduler, want := range map[string]string{"rr": inTurn, "lc": byNumber, "sh": onOnePod, "sed": byNumber, "nq": byNumber} {
		p := c.start("--balancer", scheduler)
		if got := behavior(c, p); got != want {
			t.Errorf("--balancer %s spreads connections %s, want %s", scheduler, got, want)
		}
		p.kill(syscall.SIGKILL)
	}
	said, status := c.runToEnd("", "--manifests", c.manifests, "--balancer", "wrong")
	if status != exitUsage || strings.Count(said, "\n") != 1 || !strings.Contains(said, "source-hash") {
		t.Errorf("--balancer wrong: status %d, said %q, want one line that lists the names", status, said)
	}
}

// behavior tells how three pods share six connections of one client, and who gets
// the next two when all those of one pod have ended.
func behavior(c *cluster, p *program) string {
	c.t.Helper()
	byPod := map[string][]*held{}
	take := func(n int) (pods []string) {
		for range n {
			h := hold(c.t, c.Outside, webAddress)
			pod, err := h.ask()
			check(c.t, err)
			byPod[pod] = append(byPod[pod], h)
			pods = append(pods, pod)
		}
		return pods
	}
	first := take(6)[0]
	if len(byPod) == 1 {
		return onOnePod
	}
	for pod, its := range byPod {
		if len(its) != 2 {
			return fmt.Sprintf("unevenly: %d on %s", len(its), pod)
		}
	}
	for _, h := range byPod[first] {
		check(c.t, h.Close())
	}
	p.records(2) // they have ended
	next := take(2)
	if next[0] == first && next[1] == first {
		return byNumber
	}
	if next[0] == first && next[1] != first {
		return inTurn
	}
	return fmt.Sprintf("to %v after all of %s", next, first)
}
