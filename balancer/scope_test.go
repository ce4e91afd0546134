package balancer_test

import (
	"errors"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/service"
)

// newScoped returns a Balancer with other endpoints for each scope.
func newScoped(t *testing.T, policy string, affinity time.Duration, cluster, local []int) *balancer.Balancer {
	t.Helper()
	b := newBalancer(t, policy, affinity)
	b.Update(policy, affinity, scoped(cluster, local))
	return b
}

// visitIn makes a connection in a scope that ends at once.
func visitIn(t *testing.T, b *balancer.Balancer, in service.Scope, c int) (endpoint int, sticky bool) {
	t.Helper()
	p := pickIn(t, b, in, client(c))
	p.Done()
	return number(p.Endpoint), p.Sticky
}

func TestEachScopeGetsItsOwnEndpoints(t *testing.T) {
	for _, policy := range balancer.Names() {
		b := newScoped(t, policy, 0, []int{1, 2, 3}, []int{3, 4})
		for c := range 50 {
			if n, _ := visitIn(t, b, service.Cluster, c); n > 3 {
				t.Errorf("%s: a client of the scope Cluster went to %d", policy, n)
			}
			if n, _ := visitIn(t, b, service.Local, c); n < 3 {
				t.Errorf("%s: a client of the scope Local went to %d", policy, n)
			}
		}
	}
}

func TestScopeWithoutEndpointsPicksNothingWhileTheOtherServes(t *testing.T) {
	b := newScoped(t, "round-robin", time.Hour, []int{1}, nil)
	visitIn(t, b, service.Cluster, 1)
	if p, err := b.Pick(service.Local, client(1), nil); !errors.Is(err, balancer.ErrNoEndpoints) {
		t.Errorf("Pick = %v, %v; want ErrNoEndpoints", p.Endpoint, err)
	}
	if n, sticky := visitIn(t, b, service.Cluster, 1); n != 1 || !sticky {
		t.Errorf("went to %d (sticky %v) afterwards, want the pin to 1", n, sticky)
	}
}

func TestScopesRotateIndependently(t *testing.T) {
	for _, policy := range []string{"round-robin", "least-connections", "peak-ewma"} {
		b := newScoped(t, policy, 0, []int{1, 2, 3}, []int{1, 2, 3})
		for range 3 { // 1 is next in both
			if n, _ := visitIn(t, b, service.Cluster, 1); n == 3 {
				break
			}
		}
		for range 3 {
			if n, _ := visitIn(t, b, service.Local, 1); n == 3 {
				break
			}
		}
		for i := range 9 {
			want := i%3 + 1
			if n, _ := visitIn(t, b, service.Cluster, i); n != want {
				t.Errorf("%s: Cluster went to %d, want %d", policy, n, want)
			}
			if i%2 == 0 {
				continue
			}
			if n, _ := visitIn(t, b, service.Local, i); n != i/2%3+1 {
				t.Errorf("%s: Local went to %d, want %d", policy, n, i/2%3+1)
			}
		}
	}
}

func TestOpenConnectionsCountInEveryScope(t *testing.T) {
	b := newScoped(t, "least-connections", 0, []int{1, 2}, []int{1})
	for range 3 {
		pickIn(t, b, service.Local, client(1))
	}
	for range 3 {
		if n := number(pickIn(t, b, service.Cluster, client(2)).Endpoint); n != 2 {
			t.Errorf("went to %d, which has connections of the other scope", n)
		}
	}
	if n, _ := activeOf(b, 1); n != 3 {
		t.Errorf("%d connections are counted, want 3", n)
	}
}

func TestDialLatencyIsKnownInEveryScope(t *testing.T) {
	b := newScoped(t, "peak-ewma", 0, []int{1, 2}, []int{1})
	p := pickIn(t, b, service.Local, client(1))
	p.Connected(time.Second)
	p.Done()
	for range 4 {
		if n, _ := visitIn(t, b, service.Cluster, 2); n != 2 {
			t.Errorf("went to %d, which the other scope found slow", n)
		}
	}
}

func TestPinHoldsInEveryScopeThatMayGoThere(t *testing.T) {
	b := newScoped(t, "round-robin", time.Hour, []int{1, 2, 3}, []int{2, 3})
	pinned, _ := visitIn(t, b, service.Local, 1)
	for range 3 {
		if n, sticky := visitIn(t, b, service.Cluster, 1); n != pinned || !sticky {
			t.Errorf("Cluster went to %d (sticky %v), pinned by Local to %d", n, sticky, pinned)
		}
	}
	if n := b.Stats().AffinityRecords; n != 1 {
		t.Errorf("%d records for one client", n)
	}
}

func TestPinMovesToAnEndpointOfTheScopeThatAsks(t *testing.T) {
	b := newScoped(t, "round-robin", time.Hour, []int{1}, []int{2})
	visitIn(t, b, service.Cluster, 1) // pinned to 1
	if n, sticky := visitIn(t, b, service.Local, 1); n != 2 || sticky {
		t.Errorf("Local went to %d (sticky %v), want a new choice, 2", n, sticky)
	}
	b.Update("round-robin", time.Hour, scoped([]int{1, 2, 3}, []int{2}))
	for range 3 {
		if n, sticky := visitIn(t, b, service.Cluster, 1); n != 2 || !sticky {
			t.Errorf("Cluster went to %d (sticky %v), want the new pin, 2", n, sticky)
		}
	}
}

func TestPinLastsWhileAnyScopeMayGoToItsEndpoint(t *testing.T) {
	for _, c := range []struct {
		name           string
		cluster, local []int // afterwards
		records        int
	}{
		{"leaves Cluster only", []int{2}, []int{1}, 1},
		{"leaves Local only", []int{1, 2}, nil, 1},
		{"leaves both", []int{2}, []int{2}, 0},
	} {
		b := newScoped(t, "round-robin", time.Hour, []int{1}, []int{1})
		visitIn(t, b, service.Cluster, 1)
		b.Update("round-robin", time.Hour, scoped(c.cluster, c.local))
		if n := b.Stats().AffinityRecords; n != c.records {
			t.Errorf("%s: %d records, want %d", c.name, n, c.records)
		}
	}
}

// A change of a traffic policy takes endpoints from one scope to the other.
func TestPinsSurviveTheMoveFromOneScopeToTheOther(t *testing.T) {
	b := newScoped(t, "round-robin", time.Hour, []int{1, 2}, nil)
	pinned, _ := visitIn(t, b, service.Cluster, 1)
	for range 2 {
		b.Update("round-robin", time.Hour, scoped(nil, []int{1, 2}))
		if n, sticky := visitIn(t, b, service.Local, 1); n != pinned || !sticky {
			t.Errorf("Local went to %d (sticky %v), pinned to %d", n, sticky, pinned)
		}
		b.Update("round-robin", time.Hour, scoped([]int{1, 2}, nil))
		if n, sticky := visitIn(t, b, service.Cluster, 1); n != pinned || !sticky {
			t.Errorf("Cluster went to %d (sticky %v), pinned to %d", n, sticky, pinned)
		}
	}
}

func TestChangeOfPolicyHoldsForEveryScope(t *testing.T) {
	b := newScoped(t, "round-robin", 0, upTo(9), upTo(9))
	b.Update("source-hash", 0, scoped(upTo(9), upTo(9)))
	for c := range 20 {
		cluster, _ := visitIn(t, b, service.Cluster, c)
		local, _ := visitIn(t, b, service.Local, c)
		if cluster != local {
			t.Errorf("client %d goes to %d and %d", c, cluster, local)
		}
	}
}
