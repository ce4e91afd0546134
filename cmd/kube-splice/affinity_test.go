package main

import (
	"errors"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// other returns the pod that is not the given one of pod-a and pod-b.
func other(pod string) string {
	if pod == "pod-a" {
		return "pod-b"
	}
	return "pod-a"
}

// pin asks until the end of the list of addresses and returns who answered at each.
func pin(t *testing.T, from *lab.Namespace, addresses []string) map[string]string {
	t.Helper()
	pins := map[string]string{}
	for _, address := range addresses {
		who, err := ask(from, address)
		check(t, err)
		pins[address] = who
	}
	return pins
}

func TestAffinityHoldsWhicheverObjectCameFirstAndAfterScalingToZero(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b")
	pods := []string{podA, podB}
	const seconds = 5
	c.apply("slice-before-service", newSlice("slice-first", pods))
	c.apply("service", newService("service-first", "10.96.0.22", sticky(seconds)))
	c.apply("scaled", newService("scaled", "10.96.0.23", sticky(seconds)), newSlice("scaled", pods))
	c.start()
	client := c.Pod("client").Namespace
	addresses := []string{"10.96.0.21:80", "10.96.0.22:80", "10.96.0.23:80"}

	wantRefused(t, client, addresses[1])
	pin(t, client, addresses[2:])
	c.apply("scaled", newService("scaled", "10.96.0.23", sticky(seconds)), newSlice("scaled", nil))
	within(t, time.Second, func() error { return refused(client, addresses[2]) })
	c.apply("scaled", newService("scaled", "10.96.0.23", sticky(seconds)), newSlice("scaled", pods))
	c.apply("service-after-slice", newService("slice-first", "10.96.0.21", sticky(seconds)))
	c.apply("slice-after-service", newSlice("service-first", pods))
	for _, address := range addresses {
		within(t, time.Second, func() error { return reachable(client, address) })
	}

	pins := pin(t, client, addresses)
	wantAll := func(when string, want func(pinned string) string) {
		t.Helper()
		for _, address := range addresses {
			if count := answers(t, client, address, 7); count[want(pins[address])] != 7 {
				t.Errorf("%s %s answered %v to a client first sent to %s", when, address, count, pins[address])
			}
		}
	}
	same := func(pinned string) string { return pinned }
	wantAll("at once,", same)
	time.Sleep(2600 * time.Millisecond)
	wantAll("later,", same)
	time.Sleep(2600 * time.Millisecond) // more than the timeout after the first connection
	wantAll("later still,", same)
	time.Sleep(seconds*time.Second + 50*time.Millisecond)
	wantAll("after the timeout,", other) // the rotation had stopped before the other pod
}

// reachable returns why an address does not accept connections, quickly.
func reachable(from *lab.Namespace, address string) error {
	conn, err := from.Dial("tcp", address, 200*time.Millisecond)
	if err == nil {
		_ = conn.Close()
	}
	return err
}

func TestAffinityIsCountedFromTheLastNewConnection(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b")
	c.apply("web", newService("web", "10.96.0.10", sticky(2)), newSlice("web", []string{podA, podB}))
	p := c.start()
	first := hold(t, c.Outside, "10.96.0.10:80")
	who, err := first.ask()
	check(t, err)
	for started := time.Now(); time.Since(started) < 2050*time.Millisecond; time.Sleep(100 * time.Millisecond) {
		if again, err := first.ask(); again != who {
			t.Fatalf("an established connection moved from %s to %q (%v)", who, again, err)
		}
	}
	wantAnswer(t, c.Outside, "10.96.0.10:80", other(who))
	wantAnswer(t, c.Outside, "10.96.0.10:80", other(who))
	if again, err := first.ask(); again != who {
		t.Errorf("the connection made before moved from %s to %q (%v)", who, again, err)
	}
	check(t, first.Close())
	count := map[bool]int{}
	for _, r := range p.records(3) {
		count[r.Sticky]++
	}
	if count[true] != 1 {
		t.Errorf("%d of 3 connections are logged as sticky, want the last one only", count[true])
	}
}

func TestAffinityEditedOnLiveService(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b")
	addresses := []string{"10.96.0.31:80", "10.96.0.32:80", "10.96.0.33:80"}
	for _, name := range []string{"shorter", "longer", "switched"} {
		c.apply("slice-"+name, newSlice(name, []string{podA, podB}))
	}
	// One manifest, so that who sees one change knows that all are live.
	apply := func(shorter, longer int32, switched ...func(*corev1.Service)) {
		c.apply("services", newService("shorter", "10.96.0.31", sticky(shorter)),
			newService("longer", "10.96.0.32", sticky(longer)), newService("switched", "10.96.0.33", switched...))
	}
	apply(3600, 2)
	c.start()
	client := c.Pod("client").Namespace
	sticks := func(want bool) error {
		pins := []string{}
		for range 2 {
			who, err := ask(client, addresses[2])
			check(t, err)
			pins = append(pins, who)
		}
		if (pins[0] == pins[1]) != want {
			return errors.New("the change of sessionAffinity is not live")
		}
		return nil
	}
	check(t, sticks(false))

	pins := pin(t, client, addresses[:2])
	pinned := time.Now()
	apply(1, 3600, sticky(3600))
	within(t, time.Second, func() error { return sticks(true) })
	time.Sleep(time.Until(pinned.Add(2050 * time.Millisecond)))
	wantAnswer(t, client, addresses[0], other(pins[addresses[0]]))
	wantAnswer(t, client, addresses[1], pins[addresses[1]])

	apply(1, 3600)
	within(t, time.Second, func() error { return sticks(false) })
	check(t, sticks(false))
	apply(1, 3600, sticky(3600))
	within(t, time.Second, func() error { return sticks(true) })
	check(t, sticks(true))
}

func TestAffinityLeavesPodThatCannotBeReached(t *testing.T) {
	t.Parallel()
	t.Run("refuses", func(t *testing.T) {
		t.Parallel()
		c := newCluster(t)
		stop := map[string]func(){"pod-a": c.serve("pod-a"), "pod-b": c.serve("pod-b")}
		wantAffinityToLeave(c, func(pod string) { stop[pod]() }, func(pod string) { c.serve(pod) })
	})
	t.Run("is silent", func(t *testing.T) {
		t.Parallel()
		c := newCluster(t)
		c.serveAll("pod-a", "pod-b")
		wantAffinityToLeave(c, c.silence, c.speak)
	})
}

// wantAffinityToLeave takes the pod of a pinned client away, first the pod itself
// and then its endpoint.
func wantAffinityToLeave(c *cluster, stop, restart func(pod string)) {
	t := c.t
	t.Helper()
	addressOf := map[string]string{"pod-a": podA, "pod-b": podB}
	web := newService("web", "10.96.0.10", sticky(3600))
	c.apply("web", web, newSlice("web", []string{podA, podB}))
	p := c.start()
	const address = "10.96.0.10:80"
	client := c.Pod("client").Namespace

	first, err := ask(client, address)
	check(t, err)
	wantAnswer(t, client, address, first)
	stop(first)
	second := other(first)
	wantAnswer(t, client, address, second)
	for range 5 {
		wantAnswer(t, client, address, second)
	}
	type way struct {
		attempts int
		sticky   bool
	}
	ways := map[way]int{}
	for _, r := range p.records(8) {
		ways[way{r.Attempts, r.Sticky}]++
	}
	want := map[way]int{{1, false}: 1, {2, false}: 1, {1, true}: 6} // the first, that after the stop, all others
	if !maps.Equal(ways, want) {
		t.Errorf("connections by attempts and stickiness: %v, want %v", ways, want)
	}

	restart(first)
	for range 5 {
		wantAnswer(t, client, address, second)
	}
	c.apply("web", web, newSlice("web", []string{addressOf[first]}))
	soon(t, client, address, first)

	c.apply("web", web, newSlice("web", []string{podA, podB}))
	half := newSlice("web", []string{podA, podB})
	for i, e := range half.Endpoints {
		if e.Addresses[0] == addressOf[first] {
			*half.Endpoints[i].Conditions.Ready = false
		}
	}
	c.apply("web", web, half)
	soon(t, client, address, second)
}
