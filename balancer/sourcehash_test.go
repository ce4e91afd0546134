package balancer_test

import (
	"math"
	"net/netip"
	"testing"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/service"
)

// homes returns where source-hash sends the first n clients.
func homes(t *testing.T, b *balancer.Balancer, n int) []int {
	t.Helper()
	homes := make([]int, n)
	for i := range homes {
		homes[i] = visit(t, b, client(i))
	}
	return homes
}

// The choices are part of the contract between nodes of different releases: if
// this test fails, do not adapt it.
func TestSourceHashChoicesNeverChange(t *testing.T) {
	b := newBalancer(t, "source-hash", 0, 1, 2, 3, 4, 5, 6, 7)
	for i, want := range []int{6, 2, 6, 5, 3, 4, 4, 2, 3, 1, 1, 4} {
		if got := visit(t, b, client(i)); got != want {
			t.Errorf("%v goes to %v, want %v", client(i), addr(got), addr(want))
		}
	}
	v6 := balancer.New(balancer.Config{})
	defer v6.Close()
	v6.Update("source-hash", 0, balancer.Eligible{service.Cluster: {
		{Addr: netip.MustParseAddrPort("[2001:db8::1]:80")},
		{Addr: netip.MustParseAddrPort("[2001:db8::2]:80")},
		{Addr: netip.MustParseAddrPort("[2001:db8::2]:8080")},
	}})
	for c, want := range map[string]string{
		"2001:db8:1::1": "[2001:db8::1]:80",
		"2001:db8:1::2": "[2001:db8::1]:80",
		"2001:db8:1::3": "[2001:db8::2]:80",
		"2001:db8:1::4": "[2001:db8::1]:80",
	} {
		if p := pick(t, v6, netip.MustParseAddr(c)); p.Endpoint.String() != want {
			t.Errorf("%s goes to %v, want %s", c, p.Endpoint, want)
		}
	}
}

func TestSourceHashIsTheSameOnEveryNode(t *testing.T) {
	one := newBalancer(t, "source-hash", 0, 1, 2, 3, 4, 5)
	two := newBalancer(t, "source-hash", 0, 9)
	two.Update("source-hash", 0, endpoints(5, 3, 1, 4, 2))
	h, g := homes(t, one, 200), homes(t, two, 200)
	again := homes(t, one, 200)
	for i := range h {
		if h[i] != g[i] || h[i] != again[i] {
			t.Errorf("client %d goes to %d and %d on one node, to %d on another", i, h[i], again[i], g[i])
		}
	}
}

func TestSourceHashSpreadsEvenly(t *testing.T) {
	b := newBalancer(t, "source-hash", 0, 1, 2, 3, 4, 5)
	const clients = 20_000
	count := map[int]float64{}
	for _, n := range homes(t, b, clients) {
		count[n]++
	}
	for _, n := range upTo(5) { // neighbouring clients and endpoints; 0.015 is five standard deviations
		if share := count[n] / clients; math.Abs(share-1./5) > 0.015 {
			t.Errorf("endpoint %d got %.3f of the clients, want 1/5", n, share)
		}
	}
}

func TestSourceHashMovesOnlyTheClientsOfTheEndpointThatChanged(t *testing.T) {
	const clients = 5_000
	b := newBalancer(t, "source-hash", 0, 1, 2, 3, 4, 5)
	before := homes(t, b, clients)
	b.Update("source-hash", 0, endpoints(1, 2, 4, 5))
	takenOver := map[int]int{}
	for i, n := range homes(t, b, clients) {
		if before[i] != 3 && n != before[i] {
			t.Fatalf("client %d moved from %d to %d though 3 left", i, before[i], n)
		}
		if before[i] == 3 {
			takenOver[n]++
		}
	}
	for _, n := range []int{1, 2, 4, 5} {
		if takenOver[n] < 180 { // 250 each expected
			t.Errorf("endpoint %d took over %d of some 1,000 clients", n, takenOver[n])
		}
	}
	b.Update("source-hash", 0, endpoints(1, 2, 3, 4, 5, 6))
	for i, n := range homes(t, b, clients) {
		if n != before[i] && n != 6 {
			t.Fatalf("client %d moved from %d to %d though 6 joined", i, before[i], n)
		}
	}
}

func TestSourceHashRetriesWhereTheClientWouldGoWithoutTheFirst(t *testing.T) {
	b := newBalancer(t, "source-hash", 0, 1, 2, 3, 4, 5)
	without := newBalancer(t, "source-hash", 0)
	for i := range 100 {
		home := pick(t, b, client(i)).Endpoint
		var rest []int
		for _, n := range upTo(5) {
			if addr(n) != home {
				rest = append(rest, n)
			}
		}
		without.Update("source-hash", 0, endpoints(rest...))
		retry, want := pick(t, b, client(i), home).Endpoint, pick(t, without, client(i)).Endpoint
		if retry != want {
			t.Errorf("client %d: retry goes to %v, want %v", i, retry, want)
		}
	}
}

func TestSourceHashKnowsAMappedClient(t *testing.T) {
	b := newBalancer(t, "source-hash", 0, upTo(50)...)
	plain, mapped := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("::ffff:192.0.2.7")
	if p, m := visit(t, b, plain), visit(t, b, mapped); p != m {
		t.Errorf("192.0.2.7 goes to %d, its mapped form to %d", p, m)
	}
}
