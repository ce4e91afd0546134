package main

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

// reports is a client with one socket for life that sends a numbered datagram at a
// steady pace, whoever listens.
func reports(t testing.TB, client net.Conn, pause time.Duration) {
	stopped, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for number := 0; ; number++ {
			select {
			case <-stopped:
				return
			case <-tick.C:
				_, _ = fmt.Fprint(client, number) // it may be told that an earlier one was refused
			}
		}
	}()
	t.Cleanup(func() {
		close(stopped)
		<-ended
	})
}

// receives waits for a report that a backend gets, within a second.
func receives(t *testing.T, who string, backend received) {
	t.Helper()
	within(t, time.Second, func() error {
		select {
		case <-backend:
			return nil
		default:
			return fmt.Errorf("%s receives nothing", who)
		}
	})
}

// drained forgets what a backend has received so far.
func (r received) drained() {
	for len(r) > 0 {
		<-r
	}
}

func TestUDPClientFollowsTheEndpointsWithinASecond(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, b, third := c.receiving("pod-a"), c.receiving("pod-b"), c.receiving("pod-c")
	c.publishUDP(podA)
	p := c.start()
	reports(t, udpClient(t, c.client(), udpAddress), 200*time.Millisecond)
	a.take(t)

	c.publishUDP(podB)
	receives(t, "pod-b", b)
	a.drained()
	if r := p.records(1)[0]; r.Close != "endpoint-removed" || r.Backend != podA+":8080" {
		t.Errorf("logged %+v, want the flow to pod-a as removed", r)
	}
	b.take(t)
	if len(a) > 0 {
		t.Error("pod-a receives more after it was replaced")
	}

	c.publishUDP()
	eventually(t, func() error {
		if removed := countClosed(p.records(2), "endpoint-removed"); removed != 2 {
			return fmt.Errorf("%d flows are logged as removed, want 2", removed)
		}
		return nil
	})
	b.drained()
	time.Sleep(5 * time.Second)
	c.publishUDP(podC)
	receives(t, "pod-c", third)
	if len(a)+len(b) > 0 {
		t.Error("a pod receives datagrams though it is no endpoint any more")
	}
}

func TestUDPFlowLeavesAPodThatRefuses(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	stop := serveUDP(t, c.Pod("pod-a").Namespace, ":8080", namesItself("pod-a"))
	c.publishUDP(podA, podB)
	c.start()
	bystander := udpClient(t, c.Outside, udpAddress)
	clients := make([]net.Conn, 4) // two of them get pod-b, which refuses, first
	for i := range clients {
		clients[i] = udpClient(t, c.client(), udpAddress)
		if who, err := askBy(clients[i], "1", patience); who != "pod-a 1" {
			t.Errorf("client %d is answered by %q (%v), want pod-a", i, who, err)
		}
	}
	serveUDP(t, c.Pod("pod-b").Namespace, ":8080", namesItself("pod-b"))
	stop()
	for i, client := range clients {
		if who, err := askBy(client, "2", patience); who != "pod-b 2" {
			t.Errorf("client %d is answered by %q (%v), want pod-b", i, who, err)
		}
	}
	if who, err := askBy(bystander, "3", patience); who != "pod-b 3" {
		t.Errorf("another client is answered by %q (%v), want pod-b", who, err)
	}
}

func TestUDPDatagramAfterARefusalIsNotLost(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.publishUDP(podA)
	p := c.start()
	client := udpClient(t, c.client(), udpAddress)
	for round := range 5 {
		send(t, client, "into the void")
		time.Sleep(200 * time.Millisecond)
		backend, stop := c.receivingUntil("pod-a")
		text := fmt.Sprint("question ", round)
		send(t, client, text)
		if got := backend.take(t); got.text != text {
			t.Fatalf("the backend received %q, want %q", got.text, text)
		} else {
			got.answer(t, text)
		}
		wantHeard(t, client, text)
		stop()
	}
	if strings.Contains(p.said.text(), "level=ERROR") {
		t.Error("refusals are logged as errors")
	}
}

// receivingUntil is receiving with an end.
func (c *cluster) receivingUntil(pod string) (received, func()) {
	c.t.Helper()
	datagrams := make(received, 100)
	stop := serveUDP(c.t, c.Pod(pod).Namespace, ":8080", func(conn net.PacketConn, from net.Addr, data []byte) {
		datagrams <- sent{string(data), from, conn}
	})
	return datagrams, stop
}

func TestUDPBackendThatCannotBeReachedHoldsUpNobody(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveUDPAll("pod-a")
	c.publishUDP(podA)
	c.receiving("pod-b") // it never answers
	c.inPod("pod-c", "iptables", "-w", "-A", "INPUT", "-p", "udp", "-j", "DROP")
	deaf := []string{podB, podC, "10.244.1.99"} // the last is nobody's
	for i, pod := range deaf {
		name := fmt.Sprint("deaf-", i)
		c.apply(name, newService(name, fmt.Sprint("10.96.0.", 60+i), udp), newUDPSlice(name, []string{pod}))
	}
	c.start()
	for i := range deaf {
		address := fmt.Sprintf("10.96.0.%d:53", 60+i)
		for range 20 {
			reports(t, udpClient(t, c.client(), address), 50*time.Millisecond)
		}
	}
	client := udpClient(t, c.client(), udpAddress)
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		watch := lab.StartStopwatch()
		if who, err := askBy(client, "1", patience); who != "pod-a 1" {
			t.Fatalf("answered by %q (%v), want pod-a", who, err)
		}
		if took := watch.Elapsed(); took > time.Second {
			t.Fatalf("answered after %v", took)
		}
	}
}

func TestUDPServiceWithoutReadyEndpointsIsRefusedByEveryAddress(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	ways := c.udpEverywhere()
	c.start()
	old := udpClient(t, c.Outside, udpAddress)
	if answer, err := askBy(old, "1", patience); answer != "1" {
		t.Fatalf("answered %q (%v)", answer, err)
	}
	c.unlimitedICMP()
	c.apply("slices", newUDPSlice("dns", []string{podA}, notReady), newUDPSlice("dns", []string{podA6}, ipv6, notReady))
	eventually(t, func() error {
		if _, err := askBy(old, "2", 500*time.Millisecond); !errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("the client there was before hears %v, want refused", err)
		}
		return nil
	})
	for _, way := range ways {
		for _, from := range way.from {
			wantUDPRefused(t, from, way.address)
		}
	}
}

// unlimitedICMP lets the node answer as often as it wants to (icmp_ratelimit, icmp(7)).
func (c *cluster) unlimitedICMP() {
	c.t.Helper()
	c.onNode("sysctl", "-qw", "net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0")
}
