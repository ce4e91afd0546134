package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// askFor asks from outside on behalf of a client that a header names.
func askFor(c *cluster, address, client string) (string, error) {
	conn, err := c.Outside.Dial("tcp", address, patience)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	server := farServer
	if netip.MustParseAddrPort(client).Addr().Is6() {
		server = farServer6
	}
	if _, err := io.WriteString(conn, headerOf(c.t, 2, client, server, 0)); err != nil {
		return "", err
	}
	return newHeld(conn).ask()
}

// deniedTo returns an error if a client gets a byte.
func deniedTo(c *cluster, address, client string) error {
	if who, err := askFor(c, address, client); err == nil {
		return fmt.Errorf("%s is answered by %s at %s, want denied", client, who, address)
	}
	return nil
}

func TestAffinityAndSourceHashGoByTheTrueClient(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b", "pod-c")
	pods := []string{podA, podB, podC}
	c.apply("sticky", newService("sticky", "10.96.0.10", wantsHeaders, sticky(60)), newSlice("sticky", pods))
	c.apply("hash", newService("hash", "10.96.0.20", wantsHeaders, annotations("balancer", "source-hash")), newSlice("hash", pods))
	p := c.start(trustOutside)
	for _, address := range []string{"10.96.0.10:80", "10.96.0.20:80"} {
		seen := sets.New[string]()
		for i := range 15 {
			client := fmt.Sprintf("192.0.2.%d:5555", i)
			if i%2 == 1 {
				client = fmt.Sprintf("[2001:db8::%d]:5555", i)
			}
			first, err := askFor(c, address, client)
			check(t, err)
			seen.Insert(first)
			for range 3 {
				if again, err := askFor(c, address, client); again != first || err != nil {
					t.Errorf("%s: %s is answered by %s, and then by %q (%v)", address, client, first, again, err)
				}
			}
		}
		if len(seen) < 2 {
			t.Errorf("%s: 15 clients behind one load balancer are all answered by %v", address, seen)
		}
	}
	sticky := 0
	for _, r := range p.finish(120) {
		if r.Sticky {
			sticky++
		}
	}
	if sticky != 45 {
		t.Errorf("%d connections are logged as sticky, want 45", sticky)
	}
}

func TestSourceRangesAdmitTheTrueClient(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	edit := func(ranges string, lists ...string) {
		c.apply("web", newService("web", "10.96.0.10", everyWayIn, wantsHeaders, admitting(lists...), func(s *corev1.Service) {
			if ranges != "" {
				annotations("node-port-source-ranges", ranges)(s)
			}
		}), newSlice("web", []string{podA}))
	}
	edit("192.0.2.0/25,2001:db8:a::/48", "192.0.2.128/25", "2001:db8:b::/48")
	p := c.start(trustOutside)
	const balancer, port, cluster = "10.96.0.50:80", "172.20.1.2:30080", "10.96.0.10:80"
	denials := 0
	for _, client := range []struct {
		address              string
		byPort, byBalancerIP bool
	}{
		{"192.0.2.1:1", true, false},
		{"192.0.2.129:1", false, true},
		{"198.51.100.1:1", false, false},
		{"[2001:db8:a::1]:1", true, false},
		{"[2001:db8:b::1]:1", false, true},
		{"[2001:db8:c::1]:1", false, false},
		{"172.20.9.2:1", false, false}, // the peer's own is no better
	} {
		for at, admitted := range map[string]bool{balancer: client.byBalancerIP, port: client.byPort, cluster: true} {
			who, err := askFor(c, at, client.address)
			if (err == nil && who == "pod-a") != admitted {
				t.Errorf("%s at %s: answered by %q (%v), want admitted: %v", client.address, at, who, err, admitted)
			}
			if !admitted {
				denials++
			}
		}
	}
	all := p.records(3 * 7)
	if n := countClosed(all, "denied"); n != denials {
		t.Errorf("%d connections are logged as denied, want %d", n, denials)
	}
	for _, r := range all {
		if r.Close == "denied" && (r.Attempts != 0 || r.Peer == "" && r.Client[:10] != "172.20.9.2") {
			t.Errorf("logged %+v, want the client and its peer, and no try", r)
		}
	}
	awaitSeries(t, c, fmt.Sprintf(`kubesplice_connections_refused_total{close="denied"} %d`, denials))

	edit("198.51.100.0/24", "198.51.100.0/24")
	for _, at := range []string{balancer, port} {
		within(t, time.Second, func() error { _, err := askFor(c, at, "198.51.100.1:1"); return err })
		within(t, time.Second, func() error { return deniedTo(c, at, "192.0.2.129:1") })
		within(t, time.Second, func() error { _, err := askFor(c, at, "[2001:db8:c::1]:1"); return err }) // a family without ranges
	}
	edit("")
	for _, at := range []string{balancer, port} {
		within(t, time.Second, func() error { _, err := askFor(c, at, "192.0.2.129:1"); return err })
	}
}

// Without headers the client is who connects.
func TestNodePortRangesGuardTheNodePortsOnly(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]struct {
		addressing
		none, outside string
	}{
		"IPv4": {byIPv4, "203.0.113.0/24", "172.20.9.0/24"},
		"IPv6": {byIPv6, "2001:db8::/32", "fd00:172:20:9::/64"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newTwoNodes(t)
			objects := policyCase{internal: inCluster, external: exCluster, endpoints: "local"}.objects(1, f.addressing)
			edit := func(ranges string) {
				annotations("node-port-source-ranges", ranges)(objects[0].(*corev1.Service))
				c.apply("policy", objects...)
			}
			edit(f.none)
			p := c.start()
			ways := f.ways(1)
			for _, from := range c.askers() {
				if err := denied(from, ways["nodePort"]); err != nil {
					t.Errorf("from %s: %v", from.Name, err)
				}
				for _, way := range []string{"clusterIP", "externalIP", "load balancer"} {
					wantAnswer(t, from, ways[way], localPod)
				}
			}
			if n := countClosed(p.records(12), "denied"); n != 3 {
				t.Errorf("%d connections are logged as denied, want 3", n)
			}
			edit(f.none + "," + f.outside)
			soon(t, c.Outside, ways["nodePort"], localPod)
			if err := denied(c.client(), ways["nodePort"]); err != nil {
				t.Error(err)
			}
			edit(f.none)
			within(t, time.Second, func() error { return denied(c.Outside, ways["nodePort"]) })
			edit("203.0.113.0,")
			within(t, time.Second, func() error { return wantSaid(p, "are not served", 1) })
			within(t, time.Second, func() error { return unserved(c.Outside, ways["nodePort"]) })
			wantAnswer(t, c.Outside, ways["clusterIP"], localPod)
		})
	}
}

func TestNodePortRangesHoldForUDP(t *testing.T) {
	t.Parallel()
	c := newTwoUDPNodes(t)
	objects := overUDP(policyCase{internal: inCluster, external: exCluster, endpoints: "local"}.objects(1, byIPv4))
	edit := func(ranges string) {
		annotations("node-port-source-ranges", ranges)(objects[0].(*corev1.Service))
		c.apply("policy", objects...)
	}
	edit("203.0.113.0/24")
	p := c.start()
	ways := byIPv4.ways(1)
	client := udpClient(t, c.Outside, ways["nodePort"])
	if answer, err := askBy(client, "1", time.Second); err == nil {
		t.Errorf("a client outside of the ranges is answered %q", answer)
	}
	if r := p.records(1)[0]; r.Close != "denied" || r.Client != client.LocalAddr().String() {
		t.Errorf("logged %+v, want denied", r)
	}
	if who := whoAnswersUDP(c.Outside, ways["clusterIP"]); who != localPod {
		t.Errorf("by the clusterIP, %s answers, want %s", who, localPod)
	}
	edit("172.20.9.0/24")
	within(t, time.Second, func() error {
		conn, err := c.Outside.Dial("udp", ways["nodePort"], patience)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = askBy(conn, "2", 100*time.Millisecond)
		return err
	})
}

// Least-connections is not about clients; headers must not keep it from counting.
func TestConnectionsThatWaitForTheirHeaderAreNobodysYet(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b")
	c.apply("web", newService("web", "10.96.0.10", wantsHeaders, annotations("balancer", "least-connections")), newSlice("web", []string{podA, podB}))
	c.start(trustOutside, "--proxy-protocol-header-timeout", "1m")
	for range 5 {
		connect(t, c.Outside, webAddress) // silent
	}
	count := map[string]int{}
	for i := range 10 {
		var conn net.Conn = connectHeaded(t, c, headerOf(t, 1, fmt.Sprintf("192.0.2.%d:5555", i), farServer, 0))
		who, err := newHeld(conn).ask() // and stays
		check(t, err)
		count[who]++
	}
	if count["pod-a"] != 5 || count["pod-b"] != 5 {
		t.Errorf("10 connections are spread as %v, want 5 each", count)
	}
}
