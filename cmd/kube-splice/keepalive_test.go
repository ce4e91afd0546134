package main

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kube-splice/kube-splice/lab"
)

// quickProbes make the death of a peer known after 3 s.
var quickProbes = []string{"--tcp-keepalive-idle", "1s", "--tcp-keepalive-interval", "1s", "--tcp-keepalive-count", "2"}

// unplug takes a pod's interface down.
func unplug(t testing.TB, pod *lab.Pod) {
	t.Helper()
	check(t, pod.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(link)
	}))
}

func TestIdleConnectionStaysUpWithProbesOnBothLegs(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.backend("pod-a", echo)
	c.publish(podA)
	c.start(append(quickProbes, "--half-close-timeout", "1s")...)
	conn := connect(t, c.client(), webAddress)
	exchange(t, conn, "ping")

	lines := c.onNode("ss", "-Htno", "state", "established")
	for _, peer := range []string{conn.LocalAddr().String(), podA + ":8080"} {
		if !probed(lines, peer) {
			t.Errorf("no keepalive timer on the connection with %s:\n%s", peer, lines)
		}
	}
	time.Sleep(6 * time.Second) // twice the time in which a dead peer is noticed
	exchange(t, conn, "pong")
}

// probed tells whether the output of ss has a connection with peer that waits to
// send a keepalive probe.
func probed(lines, peer string) bool {
	for line := range strings.Lines(lines) {
		if strings.Contains(line, peer+" ") && strings.Contains(line, "timer:(keepalive,") {
			return true
		}
	}
	return false
}

func TestBackendThatVanishedIsNoticedOnAnIdleConnection(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.backend("pod-a", echo)
	c.publish(podA)
	p := c.start(quickProbes...)
	conn := connect(t, c.client(), webAddress)
	exchange(t, conn, "ping")
	unplug(t, c.Pod("pod-a"))
	watch := lab.StartStopwatch()
	wantReset(t, "client", conn, 0)
	if took := watch.Elapsed(); took > 8*time.Second {
		t.Errorf("the client was reset after %v, want about 3 s", took)
	}
	if r := p.finish(1)[0]; r.Close != "backend-reset" || r.Error == "" {
		t.Errorf("logged %+v, want backend-reset with its error", r)
	}
}

func TestClientThatVanishedIsNoticedOnAnIdleConnection(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	accepted := c.accepting("pod-a")
	c.publish(podA)
	p := c.start(quickProbes...)
	conn := connect(t, c.client(), webAddress)
	backend := take(t, accepted)
	_, err := conn.Write([]byte("x"))
	check(t, err)
	receive(t, backend, 1)
	unplug(t, c.Pod("client"))
	watch := lab.StartStopwatch()
	wantReset(t, "backend", backend, 0)
	if took := watch.Elapsed(); took > 8*time.Second {
		t.Errorf("the backend was reset after %v, want about 3 s", took)
	}
	if r := p.finish(1)[0]; r.Close != "client-reset" || r.Error == "" {
		t.Errorf("logged %+v, want client-reset with its error", r)
	}
}

// The kernel probes no peer to which data waits to be sent.
func TestClientThatVanishedWithDataWaitingForItIsNoticed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.backend("pod-a", sendForEver)
	c.publish(podA)
	p := c.start(quickProbes...)
	connect(t, c.client(), webAddress) // and never reads
	slow := connect(t, c.Outside, webAddress)
	time.Sleep(time.Second) // the client's window is full
	unplug(t, c.Pod("client"))
	within(t, 12*time.Second, func() error {
		if len(p.records(0)) == 0 {
			return errors.New("the connection of a client that vanished goes on")
		}
		return nil
	})
	if r := p.records(1)[0]; r.Close != "client-reset" || !strings.Contains(r.Error, "timed out") || r.Client == slow.LocalAddr().String() {
		t.Errorf("logged %+v, want client-reset of the one that vanished", r)
	}
	receive(t, slow, 10<<20) // one that is there, and reads late, is served
}

// sendForEver writes until it cannot.
func sendForEver(conn *net.TCPConn) {
	defer func() { _ = conn.Close() }()
	for block := make([]byte, 64<<10); ; {
		if _, err := conn.Write(block); err != nil {
			return
		}
	}
}

// A proxy that dies must not make a part of an answer look like all of it.
func TestKilledProgramResetsItsConnections(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.backend("pod-a", sendForEver)
	c.publish(podA)
	p := c.start()
	conn := connect(t, c.client(), webAddress)
	receive(t, conn, 1<<20)
	p.kill(syscall.SIGKILL)
	if n, err := drainConn(conn); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after the proxy was killed the client read %d bytes to %v, want reset", n, err)
	}
}

func TestKeepaliveMayBeSwitchedOff(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.backend("pod-a", echo)
	c.publish(podA)
	c.start("--tcp-keepalive-idle", "-1s")
	conn := connect(t, c.client(), webAddress)
	exchange(t, conn, "ping")
	within(t, 2*time.Second, func() error { // a timer for the exchange itself may still run
		lines := c.onNode("ss", "-Htno", "state", "established")
		if !strings.Contains(lines, podA+":8080") || strings.Contains(lines, "timer:") {
			return fmt.Errorf("connections with a timer, or none:\n%s", lines)
		}
		return nil
	})
}
