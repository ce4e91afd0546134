package balancer_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/service"
)

func TestClientsKeepTheirEndpointWhileOthersInterleave(t *testing.T) {
	b := newBalancer(t, "round-robin", time.Hour, 1, 2, 3)
	var pinned [6]int
	for i := range pinned {
		p := pick(t, b, client(i))
		if p.Sticky {
			t.Errorf("first connection of client %d is sticky", i)
		}
		p.Done()
		pinned[i] = number(p.Endpoint)
		if i >= 3 && pinned[i] != pinned[i-3] {
			t.Errorf("new clients do not rotate: %v", pinned[:i+1])
		}
	}
	for _, i := range []int{5, 0, 3, 3, 1, 4, 2, 0, 5, 2} {
		p := pick(t, b, client(i))
		if number(p.Endpoint) != pinned[i] || !p.Sticky {
			t.Errorf("client %d went to %d (sticky %v), pinned to %d", i, number(p.Endpoint), p.Sticky, pinned[i])
		}
		p.Done()
	}
}

func TestPolicyAloneDecidesWithoutAffinity(t *testing.T) {
	b := newBalancer(t, "round-robin", 0, 1, 2)
	first := visit(t, b, client(1))
	if p := pick(t, b, client(1)); number(p.Endpoint) == first || p.Sticky {
		t.Errorf("the same client went to %d, then %d (sticky %v)", first, number(p.Endpoint), p.Sticky)
	}
	if n := b.Stats().AffinityRecords; n != 0 {
		t.Errorf("%d affinity records without affinity", n)
	}
}

func TestClientIsItsAddressAlone(t *testing.T) {
	tests := []struct {
		name, first, second string
		same                bool
	}{
		{"IPv4-mapped is IPv4", "192.0.2.1", "::ffff:192.0.2.1", true},
		{"zones are ignored", "fe80::1%eth0", "fe80::1%eth1", true},
		{"IPv6 neighbours differ", "2001:db8::1", "2001:db8::2", false},
		{"IPv4 neighbours differ", "192.0.2.1", "192.0.2.2", false},
	}
	for _, test := range tests {
		b := newBalancer(t, "round-robin", time.Hour, 1, 2)
		visit(t, b, netip.MustParseAddr(test.first))
		p := pick(t, b, netip.MustParseAddr(test.second))
		if p.Sticky != test.same {
			t.Errorf("%s: second connection sticky: %v", test.name, p.Sticky)
		}
	}
}

// However Service and endpoints arrive, the timeout is the Service's and holds
// to the nanosecond.
func TestTimeoutHoldsWhateverArrivesFirst(t *testing.T) {
	const timeout = 10 * time.Second
	rr := "round-robin"
	orders := map[string]func(b *balancer.Balancer){
		"both at once":    func(b *balancer.Balancer) { b.Update(rr, timeout, endpoints(1, 2)) },
		"service first":   func(b *balancer.Balancer) { b.Update(rr, timeout, none); b.Update(rr, timeout, endpoints(1, 2)) },
		"endpoints first": func(b *balancer.Balancer) { b.Update(rr, 0, endpoints(1, 2)); b.Update(rr, timeout, endpoints(1, 2)) },
		"endpoints first, with the API's default": func(b *balancer.Balancer) {
			b.Update(rr, 3*time.Hour, endpoints(1, 2))
			b.Update(rr, timeout, endpoints(1, 2))
		},
		"scaled to zero and back": func(b *balancer.Balancer) {
			b.Update(rr, timeout, endpoints(1, 2))
			b.Pick(service.Cluster, client(1), nil)
			b.Update(rr, timeout, none)
			b.Pick(service.Cluster, client(1), nil)
			b.Update(rr, timeout, endpoints(1, 2))
		},
		"served without affinity before": func(b *balancer.Balancer) {
			b.Update(rr, 0, endpoints(1, 2))
			b.Pick(service.Cluster, client(1), nil)
			b.Update(rr, timeout, endpoints(1, 2))
		},
	}
	for name, arrive := range orders {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := balancer.New(balancer.Config{})
				defer b.Close()
				arrive(b)
				wantTimeout(t, b, client(1), timeout)
			})
		})
	}
}

// wantTimeout checks that c, which has no record, is pinned for exactly timeout
// from its last connection. It runs in a synctest bubble.
func wantTimeout(t *testing.T, b *balancer.Balancer, c netip.Addr, timeout time.Duration) {
	t.Helper()
	first := pick(t, b, c)
	first.Done()
	if first.Sticky {
		t.Fatal("the first connection is sticky")
	}
	for range 20 {
		time.Sleep(timeout - time.Nanosecond)
		p := pick(t, b, c)
		p.Done()
		if !p.Sticky || p.Endpoint != first.Endpoint {
			t.Fatalf("1 ns before the timeout: endpoint %v, sticky %v; want %v", p.Endpoint, p.Sticky, first.Endpoint)
		}
	}
	time.Sleep(timeout)
	if p := pick(t, b, c); p.Sticky {
		t.Fatal("sticky at the timeout")
	}
}

func TestTimeoutEditedLiveCountsFromTheLastUse(t *testing.T) {
	tests := []struct {
		name            string
		old, edited     time.Duration
		editAt, visitAt time.Duration // since the last use
		sticky          bool
	}{
		{"longer, within", 10 * time.Second, 60 * time.Second, 9 * time.Second, 60*time.Second - 1, true},
		{"longer, at its end", 10 * time.Second, 60 * time.Second, 9 * time.Second, 60 * time.Second, false},
		{"longer, too late", 10 * time.Second, 60 * time.Second, 10 * time.Second, 10 * time.Second, false},
		{"shorter, within", 60 * time.Second, 10 * time.Second, 5 * time.Second, 10*time.Second - 1, true},
		{"shorter, at its end", 60 * time.Second, 10 * time.Second, 5 * time.Second, 10 * time.Second, false},
		{"shorter, over already", 60 * time.Second, 10 * time.Second, 20 * time.Second, 20 * time.Second, false},
		{"off", 60 * time.Second, 0, 5 * time.Second, 5 * time.Second, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := balancer.New(balancer.Config{})
				defer b.Close()
				b.Update("round-robin", test.old, endpoints(1, 2))
				first := visit(t, b, client(1))
				time.Sleep(test.editAt)
				b.Update("round-robin", test.edited, endpoints(1, 2))
				time.Sleep(test.visitAt - test.editAt)
				p := pick(t, b, client(1))
				if p.Sticky != test.sticky || test.sticky && number(p.Endpoint) != first {
					t.Errorf("went to %d (sticky %v) after %d, want sticky %v", number(p.Endpoint), p.Sticky, first, test.sticky)
				}
			})
		})
	}
}

func TestSwitchingAffinityOffAndOnForgets(t *testing.T) {
	b := newBalancer(t, "round-robin", time.Hour, 1, 2)
	visit(t, b, client(1))
	b.Update("round-robin", 0, endpoints(1, 2))
	if n := b.Stats().AffinityRecords; n != 0 {
		t.Errorf("%d records after affinity was switched off", n)
	}
	b.Update("round-robin", time.Hour, endpoints(1, 2))
	if pick(t, b, client(1)).Sticky {
		t.Error("the old record was revived")
	}
	if !pick(t, b, client(1)).Sticky {
		t.Error("no record was made after affinity was switched on again")
	}
}

// A record leaves at its time though nobody asks, and the timer with the last.
func TestExpiredRecordsLeaveWithoutAVisit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := balancer.New(balancer.Config{})
		defer b.Close()
		b.Update("round-robin", 10*time.Second, endpoints(1, 2))
		wantRecords := func(want int) {
			t.Helper()
			synctest.Wait()
			if got := b.Stats().AffinityRecords; got != want {
				t.Fatalf("%v records, want %v", got, want)
			}
		}
		visit(t, b, client(1))
		time.Sleep(4 * time.Second)
		visit(t, b, client(2))
		time.Sleep(4 * time.Second)
		visit(t, b, client(1)) // at 8 s: now client 2, used at 4 s, is the oldest
		time.Sleep(6*time.Second - time.Nanosecond)
		wantRecords(2)
		time.Sleep(time.Nanosecond)
		wantRecords(1)
		time.Sleep(4*time.Second - time.Nanosecond)
		wantRecords(1)
		time.Sleep(time.Nanosecond)
		wantRecords(0)
		visit(t, b, client(3)) // after the table was empty
		b.Update("round-robin", 2*time.Second, endpoints(1, 2))
		time.Sleep(2 * time.Second)
		wantRecords(0)
	})
}
