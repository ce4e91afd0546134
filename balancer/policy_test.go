package balancer_test

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-splice/kube-splice/balancer"
)

func TestLookup(t *testing.T) {
	known := map[string]string{
		"":   "round-robin",
		"rr": "round-robin", "wrr": "round-robin",
		"lc": "least-connections", "wlc": "least-connections", "sed": "least-connections", "nq": "least-connections",
		"sh": "source-hash", "mh": "source-hash",
	}
	for _, name := range balancer.Names() {
		known[name] = name
	}
	for name, want := range known {
		if got, ok := balancer.Lookup(name); got != want || !ok {
			t.Errorf("Lookup(%q) = %q, %v; want %q", name, got, ok, want)
		}
		b := newBalancer(t, name, 0, 1)
		if got := b.Stats().Policy; got != want {
			t.Errorf("Update(%q) set %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"dh", "lblc", "RR", "round-robin ", "roundrobin"} {
		if got, ok := balancer.Lookup(name); got != "" || ok {
			t.Errorf("Lookup(%q) = %q, %v; want unknown", name, got, ok)
		}
	}
}

func TestNamesAreSortedAndTheCallers(t *testing.T) {
	want := []string{"least-connections", "peak-ewma", "random", "round-robin", "source-hash"}
	if got := balancer.Names(); !slices.Equal(got, want) {
		t.Fatalf("Names() = %q, want %q", got, want)
	}
	balancer.Names()[0] = "mine"
	if got := balancer.Names(); !slices.Equal(got, want) {
		t.Errorf("after writing to a result, Names() = %q", got)
	}
}

func TestUnknownPolicyFallsBackToTheDefault(t *testing.T) {
	b := newBalancer(t, "lc", 0, 1)
	b.Update("no-such-policy", 0, endpoints(1))
	if got := b.Stats().Policy; got != balancer.Default {
		t.Errorf("policy %q, want %q", got, balancer.Default)
	}
}

func TestLeastConnectionsPrefersTheLeastBusy(t *testing.T) {
	b := newBalancer(t, "least-connections", 0, 1, 2, 3)
	open := map[int][]balancer.Pick{}
	for range 9 {
		p := pick(t, b, client(1))
		open[number(p.Endpoint)] = append(open[number(p.Endpoint)], p)
	}
	for n := range 3 {
		if len(open[n+1]) != 3 {
			t.Fatalf("endpoint %d has %d of 9 open connections, want 3", n+1, len(open[n+1]))
		}
	}
	open[2][0].Done()
	open[2][1].Failed()
	for range 2 {
		if p := pick(t, b, client(1)); number(p.Endpoint) != 2 {
			t.Errorf("picked %v, want the least busy %v", p.Endpoint, addr(2))
		}
	}
	open[1][0].Done()
	if p := pick(t, b, client(1), addr(1)); p.Endpoint == addr(1) {
		t.Error("picked the least busy one though it was tried")
	}
}

func TestIdleEndpointsTakeTurns(t *testing.T) {
	for _, policy := range []string{"least-connections", "peak-ewma"} {
		b := newBalancer(t, policy, 0, 1, 2, 3, 4)
		want := visit(t, b, client(1))
		for range 8 {
			want = want%4 + 1
			wantVisits(t, b, want)
		}
	}
}

func TestRandomIsUniform(t *testing.T) {
	b := newBalancer(t, "random", 0, 1, 2, 3, 4, 5)
	const rounds = 10_000
	all, retries := map[int]float64{}, map[int]float64{}
	for range rounds {
		all[visit(t, b, client(1))]++
		p := pick(t, b, client(1), addrs(2, 5)...)
		p.Done()
		retries[number(p.Endpoint)]++
	}
	for _, n := range upTo(5) { // 0.02 is five standard deviations
		if share := all[n] / rounds; math.Abs(share-1./5) > 0.02 {
			t.Errorf("endpoint %d got %.3f of the connections, want 1/5", n, share)
		}
	}
	for _, n := range []int{1, 3, 4} {
		if share := retries[n] / rounds; math.Abs(share-1./3) > 0.025 {
			t.Errorf("endpoint %d got %.3f of the retries, want 1/3", n, share)
		}
	}
}

// dial makes a connection whose dial takes this long, and returns its endpoint.
func dial(t *testing.T, b *balancer.Balancer, latency map[int]time.Duration) int {
	t.Helper()
	p := pick(t, b, client(1))
	p.Connected(latency[number(p.Endpoint)])
	p.Done()
	return number(p.Endpoint)
}

func TestPeakEWMAAvoidsTheSlowUntilItMayHaveRecovered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := balancer.New(balancer.Config{})
		defer b.Close()
		b.Update("peak-ewma", 0, endpoints(1, 2, 3))
		latency := map[int]time.Duration{1: 200 * time.Microsecond, 2: 200 * time.Microsecond, 3: 20 * time.Millisecond}
		visits := map[int]int{}
		for range 300 {
			visits[dial(t, b, latency)]++
		}
		if visits[3] != 1 || visits[1] < 100 || visits[2] < 100 {
			t.Errorf("visits %v: want 3, which is slow, once, the others alike", visits)
		}
		latency[3] = 200 * time.Microsecond // 20 ms decay to 200 µs in 46 s
		var waited time.Duration
		for waited < 2*time.Minute && dial(t, b, latency) != 3 {
			time.Sleep(time.Second)
			waited += time.Second
		}
		if waited < 30*time.Second || waited > 60*time.Second {
			t.Errorf("the slow endpoint was tried again after %v, want about 46 s", waited)
		}
	})
}

func TestPeakEWMAWeighsOpenConnections(t *testing.T) {
	b := newBalancer(t, "peak-ewma", 0, 1, 2)
	latency := map[int]time.Duration{1: 10 * time.Millisecond, 2: 40 * time.Millisecond}
	first, second := pick(t, b, client(1)), pick(t, b, client(1))
	for _, p := range []balancer.Pick{first, second} {
		p.Connected(latency[number(p.Endpoint)])
		p.Done()
	}
	open := map[int]int{}
	for range 50 {
		open[number(pick(t, b, client(1)).Endpoint)]++
	}
	if open[1] < 39 || open[1] > 41 {
		t.Errorf("open connections %v: want four times as many on the endpoint four times as fast", open)
	}
}

// An endpoint never dialled is taken for fast, not for infinitely fast: it must
// not draw every connection of a burst before its first dial has ended.
func TestPeakEWMADoesNotSendAWholeBurstToANewEndpoint(t *testing.T) {
	b := newBalancer(t, "peak-ewma", 0, 1)
	p := pick(t, b, client(1))
	p.Connected(time.Millisecond)
	p.Done()
	b.Update("peak-ewma", 0, endpoints(1, 2))
	open := map[int]int{}
	for range 110 {
		open[number(pick(t, b, client(1)).Endpoint)]++
	}
	if open[1] < 9 || open[1] > 11 {
		t.Errorf("open connections %v: want ten times as many on 2, which is taken for 100 µs fast", open)
	}
}

func TestPeakEWMARisesAtOnceAndFallsSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := balancer.New(balancer.Config{})
		defer b.Close()
		b.Update("peak-ewma", 0, endpoints(1, 2))
		report := func(n int, latency time.Duration) {
			p := pick(t, b, client(1), addr(3-n))
			p.Connected(latency)
			p.Done()
		}
		for range 100 {
			report(1, time.Millisecond)
			report(2, 2*time.Millisecond)
		}
		wantVisits(t, b, 1, 1)
		report(1, 5*time.Millisecond) // one slow dial of many
		wantVisits(t, b, 2, 2)
		report(1, time.Millisecond) // one fast dial does not make it good again
		wantVisits(t, b, 2, 2)
	})
}

func TestPeakEWMAAvoidsAnEndpointThatRefusesAtOnce(t *testing.T) {
	b := newBalancer(t, "peak-ewma", 0, 1, 2)
	pick(t, b, client(1), addr(2)).Failed()
	for range 5 {
		p := pick(t, b, client(1))
		if p.Endpoint != addr(2) {
			t.Errorf("picked %v, which failed just now", p.Endpoint)
		}
		p.Connected(50 * time.Millisecond)
	}
}

func TestChangeOfPolicyTakesEffectAtOnce(t *testing.T) {
	b := newBalancer(t, "round-robin", 0, 1, 2)
	busy := pick(t, b, client(1))
	b.Update("least-connections", 0, endpoints(1, 2))
	for range 3 {
		if p := pick(t, b, client(1), nil...); p.Endpoint == busy.Endpoint {
			t.Errorf("picked the busy %v", p.Endpoint)
		} else {
			p.Done()
		}
	}
}
