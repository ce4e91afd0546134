package main

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

// What holds when the header comes decides, and time spent waiting for it is not the
// endpoints'.
func TestConnectionIsJudgedWhenItsHeaderComes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	edit := func(ranges string) {
		c.apply("web", newService("web", "10.96.0.10", nodePort(30080), wantsHeaders, annotations("node-port-source-ranges", ranges)), newSlice("web", []string{podA}))
	}
	edit("192.0.2.0/24")
	p := c.start(trustOutside, "--proxy-protocol-header-timeout", "1m", "--dial-timeout", "500ms")
	const port = "172.20.1.2:30080"
	denied, served := connect(t, c.Outside, port), connect(t, c.Outside, port)
	time.Sleep(time.Second) // longer than endpoints have
	edit("198.51.100.0/24")
	within(t, time.Second, func() error { return deniedTo(c, port, farClient) })

	_, err := io.WriteString(served, headerOf(t, 2, "198.51.100.7:1", farServer, 0))
	check(t, err)
	if who, err := newHeld(served).ask(); who != "pod-a" {
		t.Errorf("answered by %q (%v)", who, err)
	}
	_, err = io.WriteString(denied, headerOf(t, 2, farClient, farServer, 0))
	check(t, err)
	wantReset(t, "a client that was in the ranges once", denied, 0)
	check(t, served.Close())
	for _, r := range p.records(3) {
		if r.Client == "198.51.100.7:1" && r.Dial > 450 {
			t.Errorf("logged %+v: the time for the header is not the endpoint's", r)
		}
	}
}

func TestPeerThatFindsAListenerNeedNotSendAHeaderToBeRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.apply("web", newService("web", "10.96.0.10", wantsHeaders), newSlice("web", []string{podA}))
	p := c.start(trustOutside, "--proxy-protocol-header-timeout", "1m")
	wantNoAnswer(t, c.Outside, fmt.Sprintf("%s:%d", lab.NodeIP, c.portOfListener("default/web:http")))
	if r := p.records(1)[0]; r.Close != "refused-direct" {
		t.Errorf("logged %+v, want refused-direct", r)
	}
}

func TestSIGTERMDoesNotWaitForHeadersForLong(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.apply("web", newService("web", "10.96.0.10", wantsHeaders), newSlice("web", []string{podA}))
	p := c.start(trustOutside, "--proxy-protocol-header-timeout", "1m", "--drain-timeout", "300ms")
	conn := connect(t, c.Outside, webAddress)
	awaitSeries(t, c, "kubesplice_connections_active 1")
	if r := p.finish(1)[0]; r.Close != "shutdown" {
		t.Errorf("logged %+v, want shutdown", r)
	}
	wantReset(t, "a peer", conn, 0)
}

func TestServiceThatWantsHeadersOfNobodyIsNamed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	sent := c.collecting("pod-a")
	c.apply("web", newService("web", "10.96.0.10", wantsHeaders), newSlice("web", []string{podA}))
	p := c.start()
	eventually(t, func() error { return wantSaid(p, "say which with --proxy-protocol-trusted-cidrs", 1) })
	header := headerOf(t, 1, farClient, farServer, 0)
	conn := sendPieces(t, c.Outside, webAddress, 0, header+"hi")
	wantCollected(t, sent, header+"hi")
	wantClient(t, p.records(1)[0], "", conn.LocalAddr())
}

func TestTrustedPeersThatAreNoRangesAreRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for _, bad := range []string{"192.0.2.1", "10.0.0.0/33", "lb.example", "::ffff:192.0.2.0/120", "192.0.2.0/24,x"} {
		said, status := c.runToEnd("", "--manifests", c.manifests, "--proxy-protocol-trusted-cidrs", bad)
		if status != exitUsage || !strings.Contains(said, "is no address range") || strings.Count(said, "\n") > 2 {
			t.Errorf("%q: exit status %d: %s", bad, status, said)
		}
	}
}
