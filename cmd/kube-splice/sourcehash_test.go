package main

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

// dialBy connects from one address of a machine that has several, and asks.
func dialBy(from *lab.Namespace, source, address string) (string, error) {
	var conn net.Conn
	err := from.Do(func() (err error) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: 6 * time.Second}
		conn, err = dialer.Dial("tcp", address)
		return err
	})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return newHeld(conn).ask()
}

func TestSourceHashKeepsClientsOnTheirPods(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b", "pod-c")
	c.publish(podA, podB, podC)
	var clients []string
	for i := range 30 {
		clients = append(clients, fmt.Sprintf("10.244.1.%d", 100+i))
		c.inPod("client", "ip", "address", "add", clients[i]+"/24", "dev", "eth0")
	}
	podsOf := func() map[string]string {
		pods := map[string]string{}
		for _, client := range clients {
			who, err := dialBy(c.client(), client, webAddress)
			check(t, err)
			pods[client] = who
		}
		return pods
	}
	p := c.start("--balancer", "source-hash")
	before := podsOf()
	count := map[string]int{}
	for _, pod := range before {
		count[pod]++
	}
	if len(count) != 3 || count["pod-a"] < 3 || count["pod-b"] < 3 || count["pod-c"] < 3 {
		t.Errorf("30 clients are spread as %v", count)
	}
	if again := podsOf(); !maps.Equal(again, before) {
		t.Errorf("clients moved from %v to %v", before, again)
	}
	p.kill(syscall.SIGKILL)
	c.start("--balancer", "source-hash")
	if again := podsOf(); !maps.Equal(again, before) {
		t.Errorf("a restart moved clients from %v to %v", before, again)
	}

	ofC := clients[slices.IndexFunc(clients, func(client string) bool { return before[client] == "pod-c" })]
	onC := func(want bool) error {
		who, err := dialBy(c.client(), ofC, webAddress)
		if err == nil && (who == "pod-c") != want {
			err = fmt.Errorf("client %s is on %s", ofC, who)
		}
		return err
	}
	c.publish(podA, podB)
	within(t, time.Second, func() error { return onC(false) })
	for client, pod := range podsOf() {
		if was := before[client]; pod == "pod-c" || was != "pod-c" && pod != was {
			t.Errorf("without pod-c, client %s moved from %s to %s", client, was, pod)
		}
	}
	c.publish(podA, podB, podC)
	within(t, time.Second, func() error { return onC(true) })
	if again := podsOf(); !maps.Equal(again, before) {
		t.Errorf("with pod-c back, clients are at %v, before at %v", again, before)
	}
}
