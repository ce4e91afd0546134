package redirect_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/redirect"
	"github.com/kube-splice/kube-splice/service"
)

// preserving asks for a Service port, and for clients' addresses in both families.
func preserving() redirect.Rules {
	return redirect.Rules{
		Bindings: []service.Binding{binding("shop/web:http", service.TCP, service.ClusterIP, "10.96.0.11", 80, 40001)},
		Preserve: []service.Family{service.IPv4, service.IPv6},
	}
}

func TestWhatBringsAnswersIsMadeOnceAndWhenWanted(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		p.countWrites()
		n := newNode(t)
		r := n.open(redirect.Config{})
		client, endpoint := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("192.0.2.9")
		want := preserving()
		families := want.Preserve
		want.Preserve = nil
		n.sync(r, want)
		if now := n.saved(); strings.Contains(now, "KUBE-CLIENT") || r.MayPreserve(client, endpoint) {
			t.Errorf("nobody asked for clients' addresses, and there is\n%s", now)
		}
		want.Preserve = families
		n.sync(r, want)
		made := n.saved()
		for _, chain := range []string{"KUBE-CLIENT-DIALLED", "KUBE-CLIENT-ANSWERS"} {
			if count := strings.Count(made, "-A "+chain); count != 4 {
				t.Errorf("%s has %d rules in both families, want 4, in\n%s", chain, count, made)
			}
		}
		before := p.writes()
		n.sync(r, want)
		if p.writes() != before || before == 0 {
			t.Errorf("%d writes, and then %d: what was there was written again", before, p.writes())
		}
		want.Preserve = nil // connections may need it
		n.sync(r, want)
		if now := n.saved(); now != made || !n.intact(r) {
			t.Errorf("the rules were\n%s\nand are\n%s", made, now)
		}
		for _, damage := range []string{"ip rule del lookup 8192", "ip -6 route flush table 8192"} {
			n.run(damage)
			if n.intact(r) {
				t.Errorf("%s was not noticed", damage)
			}
			n.sync(r, want)
			if !n.intact(r) {
				t.Errorf("%s was not made good", damage)
			}
		}
		if removed := n.cleanup(); !slices.Contains(removed, "IPv4 routing") || !slices.Contains(removed, "IPv6 routing") {
			t.Errorf("cleanup removed %v, want routing of both families", removed)
		}
		if now := n.saved(); strings.Contains(now, "KUBE-") {
			t.Errorf("cleanup left\n%s", now)
		}
	})
}

// Answers pass the node only if they have to take another interface than the client's.
func TestAddressesArePreservedBetweenTwoLinks(t *testing.T) {
	c := newCluster(t)
	r := c.open(redirect.Config{})
	c.sync(r, preserving())
	for _, pair := range []struct {
		client, endpoint string
		want             bool
	}{
		{"172.20.9.2", "10.244.1.11", true},
		{"fd00:172:20:9::2", "fd00:10:244:1::11", true},
		{"10.244.1.50", "10.244.1.11", false}, // on one bridge
		{"172.20.9.2", "172.20.1.9", false},   // by one uplink
		{"172.20.1.2", "10.244.1.11", false},  // the node's
		{"172.20.9.2", "172.20.1.2", false},   // on the node's network
		{"fd00:172:20:1::2", "fd00:10:244:1::11", false},
		{"127.0.0.1", "10.244.1.11", false},
	} {
		if got := r.MayPreserve(netip.MustParseAddr(pair.client), netip.MustParseAddr(pair.endpoint)); got != pair.want {
			t.Errorf("%s at %s may be preserved: %v, want %v", pair.client, pair.endpoint, got, pair.want)
		}
	}
	c.run("ip route add 172.20.9.2/32 dev cbr0")
	for deadline := time.Now().Add(20 * time.Second); r.MayPreserve(netip.MustParseAddr("172.20.9.2"), netip.MustParseAddr("10.244.1.11")); {
		if time.Now().After(deadline) {
			t.Fatal("a client that came to be on the pods' bridge may still be preserved")
		}
		time.Sleep(10 * time.Millisecond)
	}
}
