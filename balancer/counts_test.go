package balancer_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/service"
)

func TestStatsSayWhatIsOpen(t *testing.T) {
	b := newBalancer(t, "rr", 0, 2, 1)
	for range 4 {
		pick(t, b, client(1))
	}
	pick(t, b, client(1), addr(1)).Failed()
	pick(t, b, client(1), addr(1)).Done()
	got := b.Stats()
	want := []balancer.EndpointStats{{Addr: addr(1), Eligible: true, Active: 2}, {Addr: addr(2), Eligible: true, Active: 2}}
	if got.Policy != "round-robin" || !slices.Equal(got.Endpoints, want) {
		t.Errorf("Stats = %+v, want round-robin and %+v", got, want)
	}
	got.Endpoints[0].Active = 99
	if again := b.Stats(); again.Endpoints[0].Active != 2 {
		t.Error("writing to the result changed the balancer")
	}
}

func TestCountsSurviveAnEndpointLeavingAndReturning(t *testing.T) {
	b := newBalancer(t, "round-robin", 0, 1)
	first, second := pick(t, b, client(1)), pick(t, b, client(2))
	b.Update("round-robin", 0, endpoints(2))
	if es := b.Stats().Endpoints; len(es) != 2 || es[0] != (balancer.EndpointStats{Addr: addr(1), Active: 2}) {
		t.Errorf("while it is away: %+v", es)
	}
	first.Done()
	b.Update("least-connections", 0, endpoints(1, 2))
	if n, _ := activeOf(b, 1); n != 1 {
		t.Errorf("back with %d connections, want 1", n)
	}
	for range 3 { // it counts: the other is always the less busy one
		p := pick(t, b, client(3))
		if p.Endpoint != addr(2) {
			t.Errorf("picked %v, want the idle %v", p.Endpoint, addr(2))
		}
		p.Done()
	}
	second.Done()
	if n, _ := activeOf(b, 1); n != 0 {
		t.Errorf("%d connections after the last ended", n)
	}
}

func TestDepartedEndpointIsListedUntilItsLastConnectionEnds(t *testing.T) {
	for name, end := range map[string]func(balancer.Pick){"done": balancer.Pick.Done, "failed": balancer.Pick.Failed} {
		b := newBalancer(t, "round-robin", 0, 1)
		p := pick(t, b, client(1))
		b.Update("round-robin", 0, none)
		if _, listed := activeOf(b, 1); !listed {
			t.Errorf("%s: not listed while a connection is open", name)
		}
		end(p)
		if _, listed := activeOf(b, 1); listed {
			t.Errorf("%s: still listed afterwards", name)
		}
	}
}

func TestUpdateKeepsNothingOfTheCallersSlice(t *testing.T) {
	b := balancer.New(balancer.Config{})
	defer b.Close()
	es := []service.Endpoint{{Addr: addr(2)}, {Addr: addr(1)}}
	b.Update("round-robin", 0, balancer.Eligible{service.Cluster: es})
	if es[0].Addr != addr(2) {
		t.Error("Update sorted the caller's slice")
	}
	es[0].Addr, es[1].Addr = addr(8), addr(9)
	if n := visit(t, b, client(1)); n > 2 {
		t.Errorf("picked %d, written to the slice after Update", n)
	}
}

// Everything at once, for the race detector; the books must balance at the end.
func TestConcurrentUse(t *testing.T) {
	b := balancer.New(balancer.Config{MaxAffinity: 50})
	defer b.Close()
	stop := make(chan struct{})
	var updater, workers sync.WaitGroup
	updater.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			policy := balancer.Names()[rand.IntN(5)]
			b.Update(policy, time.Duration(rand.IntN(3))*time.Millisecond, scoped(upTo(rand.IntN(6)), upTo(rand.IntN(3))))
			b.Stats()
		}
	})
	for range 8 {
		workers.Go(func() { connectALot(b) })
	}
	workers.Wait()
	close(stop)
	updater.Wait()
	b.Update("round-robin", 0, none)
	if s := b.Stats(); len(s.Endpoints) != 0 || s.AffinityRecords != 0 {
		t.Errorf("left over: %+v", s)
	}
}

func connectALot(b *balancer.Balancer) {
	for range 2_000 {
		c, in := client(rand.IntN(100)), service.Scope(rand.IntN(service.Scopes))
		var tried []netip.AddrPort
		for {
			p, err := b.Pick(in, c, tried)
			if err != nil {
				break
			}
			if rand.IntN(3) == 0 {
				p.Failed()
				tried = append(tried, p.Endpoint)
				continue
			}
			p.Connected(time.Duration(rand.IntN(1000)) * time.Microsecond)
			p.Done()
			break
		}
	}
}
