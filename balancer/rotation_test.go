package balancer_test

import (
	"errors"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/service"
)

func TestPickFailsWithoutEndpoints(t *testing.T) {
	b := balancer.New(balancer.Config{})
	defer b.Close()
	if p, err := b.Pick(service.Cluster, client(1), nil); !errors.Is(err, balancer.ErrNoEndpoints) || p.Endpoint.IsValid() {
		t.Errorf("never updated: Pick = %v, %v; want no endpoint and ErrNoEndpoints", p.Endpoint, err)
	}
	for _, policy := range balancer.Names() {
		b.Update(policy, 0, endpoints(1))
		visit(t, b, client(1))
		b.Update(policy, 0, none)
		if p, err := b.Pick(service.Cluster, client(1), nil); !errors.Is(err, balancer.ErrNoEndpoints) || p.Endpoint.IsValid() {
			t.Errorf("%s, scaled to zero: Pick = %v, %v; want no endpoint and ErrNoEndpoints", policy, p.Endpoint, err)
		}
	}
}

func TestSingleEndpointIsAlwaysPicked(t *testing.T) {
	for _, policy := range balancer.Names() {
		b := newBalancer(t, policy, 0, 7)
		wantVisits(t, b, 7, 7, 7, 7)
	}
}

func TestRotationIsStrictAndWraps(t *testing.T) {
	b := newBalancer(t, "round-robin", 0, 3, 1, 2)
	want := visit(t, b, client(1))
	for range 10 {
		want = want%3 + 1
		wantVisits(t, b, want)
	}
}

func TestRotationStartsAtARandomPlace(t *testing.T) {
	for _, policy := range []string{"round-robin", "least-connections", "peak-ewma"} {
		first := map[int]int{}
		for range 300 {
			first[visit(t, newBalancer(t, policy, 0, 1, 2, 3), client(1))]++
		}
		for n := range 3 {
			if first[n+1] < 50 { // 100 expected; below 50 once in 10^9 runs
				t.Errorf("%s: of 300 balancers %d start with endpoint %d", policy, first[n+1], n+1)
			}
		}
	}
}

// The nodes of a cluster see endpoints become ready in the same order.
func TestRotationStartsAtARandomPlaceWhenEndpointsAppearOneByOne(t *testing.T) {
	first := map[int]int{}
	for range 300 {
		b := newBalancer(t, "round-robin", 0, 1)
		b.Update("round-robin", 0, endpoints(1, 2))
		b.Update("round-robin", 0, endpoints(1, 2, 3))
		first[visit(t, b, client(1))]++
	}
	if first[1] > 200 || first[2] < 50 || first[3] < 50 {
		t.Errorf("of 300 balancers this many start with each endpoint: %v", first)
	}
}

// rotatedTo returns a round-robin balancer over 10, 20, 30, 40 that has next to
// pick that endpoint.
func rotatedTo(t *testing.T, next int) *balancer.Balancer {
	t.Helper()
	b := newBalancer(t, "round-robin", 0, 10, 20, 30, 40)
	for visit(t, b, client(1)) != (next+20)%40+10 {
	}
	return b
}

func TestRotationSurvivesUpdates(t *testing.T) {
	tests := []struct {
		name    string
		next    int
		updates [][]int
		want    []int
	}{
		{"nothing changes", 20, [][]int{{10, 20, 30, 40}}, []int{20, 30, 40, 10}},
		{"order changes", 20, [][]int{{40, 10, 30, 20}}, []int{20, 30, 40, 10}},
		{"one is given twice", 20, [][]int{{10, 20, 20, 30, 40}}, []int{20, 30, 40, 10}},
		{"one before is added", 20, [][]int{{5, 10, 20, 30, 40}}, []int{20, 30, 40, 5, 10}},
		{"one just before is added", 20, [][]int{{10, 15, 20, 30, 40}}, []int{20, 30, 40, 10, 15}},
		{"one after is added", 20, [][]int{{10, 20, 25, 30, 40}}, []int{20, 25, 30, 40, 10}},
		{"one before is removed", 20, [][]int{{20, 30, 40}}, []int{20, 30, 40, 20}},
		{"one after is removed", 20, [][]int{{10, 20, 40}}, []int{20, 40, 10, 20}},
		{"the next is removed", 20, [][]int{{10, 30, 40}}, []int{30, 40, 10, 30}},
		{"the next is replaced", 20, [][]int{{10, 21, 30, 40}}, []int{21, 30, 40, 10}},
		{"the last is next and removed", 40, [][]int{{10, 20, 30}}, []int{10, 20, 30, 10}},
		{"the last is next and some before are removed", 40, [][]int{{30, 40}}, []int{40, 30, 40}},
		{"all are replaced", 20, [][]int{{1, 2, 50, 60}}, []int{50, 60, 1, 2}},
		{"scaled to zero and back", 20, [][]int{{}, {10, 20, 30, 40}}, []int{20, 30, 40, 10}},
		{"the next leaves and returns unused", 20, [][]int{{10, 30, 40}, {10, 20, 30, 40}}, []int{20, 30, 40, 10}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := rotatedTo(t, test.next)
			for _, ns := range test.updates {
				b.Update("round-robin", 0, endpoints(ns...))
			}
			wantVisits(t, b, test.want...)
		})
	}
}

func TestRotationSurvivesEveryNoopUpdate(t *testing.T) {
	b := rotatedTo(t, 10)
	for i := range 8 {
		b.Update([]string{"round-robin", "rr", "", "no-such-policy"}[i%4], 0, endpoints(10, 20, 30, 40))
		wantVisits(t, b, i%4*10+10)
	}
}

func TestStickyHitDoesNotAdvanceTheRotation(t *testing.T) {
	b := rotatedTo(t, 20)
	b.Update("round-robin", time.Hour, endpoints(10, 20, 30, 40))
	for range 5 {
		if got := visit(t, b, client(1)); got != 20 {
			t.Fatalf("pinned client went to %d, want 20", got)
		}
	}
	wantVisits(t, b, 30, 40, 10, 20)
}

func TestTriedEndpointsArePassedOver(t *testing.T) {
	b := rotatedTo(t, 20)
	p := pick(t, b, client(1), addrs(20, 30)...)
	if p.Endpoint != addr(40) {
		t.Errorf("with 20 and 30 tried, picked %v, want %v", p.Endpoint, addr(40))
	}
	wantVisits(t, b, 10, 20)
}

func TestEveryEndpointIsTriedOnceThenNoneIsLeft(t *testing.T) {
	for _, policy := range balancer.Names() {
		for _, affinity := range []time.Duration{0, time.Hour} {
			b := newBalancer(t, policy, affinity, upTo(5)...)
			tried := addrs(99) // not an endpoint: of no consequence
			for range 5 {
				p := pick(t, b, client(1), tried...)
				for _, a := range tried {
					if p.Endpoint == a {
						t.Errorf("%s: picked %v again, tried already: %v", policy, a, tried)
					}
				}
				p.Failed()
				tried = append(tried, p.Endpoint, p.Endpoint) // twice: of no consequence
			}
			if p, err := b.Pick(service.Cluster, client(1), tried); !errors.Is(err, balancer.ErrNoEndpoints) {
				t.Errorf("%s: all tried: Pick = %v, %v, want ErrNoEndpoints", policy, p.Endpoint, err)
			}
			pick(t, b, client(1)).Done() // a new connection may try them again
		}
	}
}

// Named ports of one Service, or two Services, have a Balancer each.
func TestBalancersRotateIndependently(t *testing.T) {
	web, dns := rotatedTo(t, 10), rotatedTo(t, 30)
	wantVisits(t, web, 10, 20)
	wantVisits(t, dns, 30, 40)
	web.Update("round-robin", 0, none)
	if _, err := web.Pick(service.Cluster, client(1), nil); !errors.Is(err, balancer.ErrNoEndpoints) {
		t.Errorf("web without endpoints: error %v, want ErrNoEndpoints", err)
	}
	wantVisits(t, dns, 10, 20)
}

func TestClosedBalancerPicksNothing(t *testing.T) {
	b := newBalancer(t, "round-robin", time.Hour, 1, 2)
	open, failing := pick(t, b, client(1)), pick(t, b, client(2))
	b.Close()
	b.Update("round-robin", time.Hour, endpoints(1, 2))
	if _, err := b.Pick(service.Cluster, client(1), nil); !errors.Is(err, balancer.ErrNoEndpoints) {
		t.Errorf("Pick after Close: error %v, want ErrNoEndpoints", err)
	}
	if n := b.Stats().AffinityRecords; n != 0 {
		t.Errorf("%d affinity records after Close", n)
	}
	open.Connected(time.Millisecond)
	open.Done()
	failing.Failed()
	if es := b.Stats().Endpoints; len(es) != 0 {
		t.Errorf("endpoints after Close and the last connection: %v", es)
	}
	b.Close()
}
