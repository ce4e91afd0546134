package balancer_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// addr returns the address of the nth endpoint; addresses sort as n does.
func addr(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 80)
}

// client returns the address of the nth client.
func client(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{192, byte(n >> 16), byte(n >> 8), byte(n)})
}

func addrs(ns ...int) []netip.AddrPort {
	var as []netip.AddrPort
	for _, n := range ns {
		as = append(as, addr(n))
	}
	return as
}

// endpoints returns the endpoints of a Service port whose clients all get the same.
func endpoints(ns ...int) balancer.Eligible {
	return scoped(ns, nil)
}

// none are no endpoints for anyone.
var none balancer.Eligible

// scoped returns the endpoints of a Service port with two scopes.
func scoped(cluster, local []int) balancer.Eligible {
	var both balancer.Eligible
	for in, ns := range [service.Scopes][]int{service.Cluster: cluster, service.Local: local} {
		for _, a := range addrs(ns...) {
			both[in] = append(both[in], service.Endpoint{Addr: a, Ready: true, Serving: true})
		}
	}
	return both
}

// upTo returns 1 to n.
func upTo(n int) []int {
	ns := make([]int, n)
	for i := range ns {
		ns[i] = i + 1
	}
	return ns
}

// newBalancer returns a Balancer with these endpoints that the test closes.
func newBalancer(t testing.TB, policy string, affinity time.Duration, ns ...int) *balancer.Balancer {
	t.Helper()
	b := balancer.New(balancer.Config{})
	t.Cleanup(b.Close)
	b.Update(policy, affinity, endpoints(ns...))
	return b
}

// pick returns a Pick that must succeed.
func pick(t testing.TB, b *balancer.Balancer, c netip.Addr, tried ...netip.AddrPort) balancer.Pick {
	t.Helper()
	return pickIn(t, b, service.Cluster, c, tried...)
}

// pickIn returns a Pick of that scope that must succeed.
func pickIn(t testing.TB, b *balancer.Balancer, in service.Scope, c netip.Addr, tried ...netip.AddrPort) balancer.Pick {
	t.Helper()
	p, err := b.Pick(in, c, tried)
	if err != nil {
		t.Fatalf("Pick(%v, %v, %v): %v", in, c, tried, err)
	}
	return p
}

// visit makes a connection that ends at once and returns its endpoint's number.
func visit(t testing.TB, b *balancer.Balancer, c netip.Addr) int {
	t.Helper()
	p := pick(t, b, c)
	p.Done()
	return number(p.Endpoint)
}

// number is the n of addr(n).
func number(a netip.AddrPort) int {
	b := a.Addr().As4()
	return int(b[2])<<8 | int(b[3])
}

// wantVisits makes connections of unrelated clients and checks where they go.
func wantVisits(t testing.TB, b *balancer.Balancer, want ...int) {
	t.Helper()
	var got []int
	for i := range want {
		got = append(got, visit(t, b, client(1000+i)))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("connections went to %v, want %v", got, want)
	}
}

// activeOf returns the open connections of endpoint n, and whether it is listed.
func activeOf(b *balancer.Balancer, n int) (int, bool) {
	for _, e := range b.Stats().Endpoints {
		if e.Addr == addr(n) {
			return e.Active, true
		}
	}
	return 0, false
}
