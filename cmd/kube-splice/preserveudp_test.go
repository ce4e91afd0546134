package main

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-splice/kube-splice/lab"
)

// serveDatagrams has a pod say whom it takes for its client.
func (c *cluster) serveDatagrams(pod string) {
	c.t.Helper()
	server, err := c.Pod(pod).ServeDatagrams(8080)
	check(c.t, err)
	c.t.Cleanup(func() { _ = server.Close() })
}

// wantSeenUDP demands that a pod sees that peer.
func wantSeenUDP(t testing.TB, from *lab.Namespace, address, peer string) {
	t.Helper()
	answer, err := askBy(udpClient(t, from, address), "who", patience)
	_, seen, _ := strings.Cut(strings.TrimSpace(answer), " ")
	if at, _ := netip.ParseAddrPort(seen); err != nil || at.Addr().String() != peer {
		t.Errorf("%s at %s: %q (%v), want %s", from.Name, address, answer, err, peer)
	}
}

func TestPolicyLocalShowsPodsTheUDPClientOutside(t *testing.T) {
	forEachBackend(t, func(c *cluster, p *programs) {
		c.serveDatagrams(localPod)
		for i, family := range localCases {
			local := policyCase{internal: inCluster, external: exLocal, endpoints: "local"}
			c.apply(fmt.Sprintf("policy-%d", i), overUDP(local.objects(1, family.addressing))...)
		}
		program := c.launch(p.setup(), "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48")
		program.waitReady()
		for _, family := range localCases {
			for way, address := range family.ways(1) {
				seen := family.outside
				if way == "clusterIP" {
					seen = family.bridge
				}
				wantSeenUDP(c.t, c.Outside, address, seen)
				wantSeenUDP(c.t, c.client(), address, family.bridge)
				wantSeenUDP(c.t, c.Node, address, family.bridge)
			}
			wantSeenUDP(c.t, c.Outside, net.JoinHostPort(family.pods[localPod], "8080"), family.outside)
		}
		says := map[string]int{}
		for _, r := range program.finish(2 * 4 * 3) {
			says[r.ClientIP]++
		}
		if says[preserved] != 6 || says[hidden] != 18 {
			c.t.Errorf("logged %v, want 6 preserved and 18 hidden", says)
		}
	})
}

// An answer that comes when conntrack has forgotten the flow is lost, but no more than that.
func TestPreservedUDPFlowGoesOnWhenConntrackHasForgottenIt(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.onNode("sysctl", "-qw", "net.ipv4.udp_early_demux=0") // which finds the socket by itself
	server, err := c.Pod(localPod).ListenPacket("udp4", ":8080")
	check(t, err)
	defer server.Close()
	local := policyCase{internal: inCluster, external: exLocal, endpoints: "local"}
	c.apply("policy", overUDP(local.objects(1, byIPv4))...)
	c.start()
	client := udpClient(t, c.Outside, byIPv4.ways(1)["nodePort"])
	for round := range 3 {
		send(t, client, "ask")
		_, peer, err := server.ReadFrom(make([]byte, 10))
		check(t, err)
		if at := peer.(*net.UDPAddr).IP.String(); at != lab.OutsideIP {
			t.Errorf("the pod sees %s, want %s", at, lab.OutsideIP)
		}
		_, err = server.WriteTo([]byte("answer"), peer)
		check(t, err)
		if heard, err := hear(client, patience); heard != "answer" {
			t.Fatalf("heard %q (%v)", heard, err)
		}
		if round > 0 {
			continue
		}
		c.onNode("conntrack", "-D", "-p", "udp", "--orig-dst", podA)
		_, err = server.WriteTo([]byte("late"), peer)
		check(t, err)
	}
}
