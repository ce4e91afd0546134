package balancer_test

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-splice/kube-splice/balancer"
)

// pinned returns a balancer over these endpoints and clients[n] pinned to n.
func pinned(t *testing.T, ns ...int) (b *balancer.Balancer, clients map[int]int) {
	t.Helper()
	b = newBalancer(t, "round-robin", time.Hour, ns...)
	clients = map[int]int{}
	for i := range ns {
		clients[visit(t, b, client(i))] = i
	}
	return b, clients
}

// wantPin checks that client c has a record that points at n.
func wantPin(t *testing.T, b *balancer.Balancer, c, n int) {
	t.Helper()
	p := pick(t, b, client(c))
	defer p.Done()
	if !p.Sticky || number(p.Endpoint) != n {
		t.Errorf("client %d went to %d (sticky %v), want sticky %d", c, number(p.Endpoint), p.Sticky, n)
	}
}

func TestRemovingAnEndpointMovesOnlyItsClients(t *testing.T) {
	b, clients := pinned(t, 1, 2, 3)
	b.Update("round-robin", time.Hour, endpoints(1, 3))
	if n := b.Stats().AffinityRecords; n != 2 {
		t.Errorf("%d records, want the 2 of the endpoints that stay", n)
	}
	wantPin(t, b, clients[1], 1)
	wantPin(t, b, clients[3], 3)
	moved := pick(t, b, client(clients[2]))
	if moved.Sticky || moved.Endpoint == addr(2) {
		t.Errorf("client of the removed endpoint: %v (sticky %v)", moved.Endpoint, moved.Sticky)
	}
	b.Update("round-robin", time.Hour, endpoints(1, 2, 3, 4)) // 2 returns, 4 is new
	wantPin(t, b, clients[1], 1)
	wantPin(t, b, clients[3], 3)
	wantPin(t, b, clients[2], number(moved.Endpoint))
}

func TestReplacingAllEndpointsMovesAllClients(t *testing.T) {
	b, clients := pinned(t, 1, 2, 3)
	b.Update("round-robin", time.Hour, endpoints(4, 5, 6))
	for _, c := range clients {
		p := pick(t, b, client(c))
		if p.Sticky || number(p.Endpoint) < 4 {
			t.Errorf("client %d: %v (sticky %v)", c, p.Endpoint, p.Sticky)
		}
		wantPin(t, b, c, number(p.Endpoint))
	}
}

func TestPinIsGoneWhenItsEndpointLeavesAndReturns(t *testing.T) {
	b, clients := pinned(t, 1, 2)
	open := pick(t, b, client(clients[1])) // keeps what is known of 1
	b.Update("round-robin", time.Hour, endpoints(2))
	b.Update("round-robin", time.Hour, endpoints(1, 2))
	if n := b.Stats().AffinityRecords; n != 1 {
		t.Errorf("%d records, want 1", n)
	}
	if pick(t, b, client(clients[1])).Sticky {
		t.Error("the record survived its endpoint")
	}
	open.Done()
}

func TestPinsOfOtherBalancersStay(t *testing.T) {
	foo, _ := pinned(t, 1, 2)
	bar, clients := pinned(t, 1, 2)
	foo.Update("round-robin", time.Hour, none)
	wantPin(t, bar, clients[1], 1)
	foo.Close()
	wantPin(t, bar, clients[2], 2)
}

func TestFailedDialMovesThePinOfThatClientOnly(t *testing.T) {
	b, clients := pinned(t, 1, 2, 3)
	other := 50
	for visit(t, b, client(other)) != 1 {
		other++
	}
	failed := pick(t, b, client(clients[1]))
	failed.Failed()
	retry := pick(t, b, client(clients[1]), failed.Endpoint)
	if retry.Sticky || retry.Endpoint == addr(1) {
		t.Errorf("retry: %v (sticky %v), want another endpoint by rotation", retry.Endpoint, retry.Sticky)
	}
	retry.Connected(time.Millisecond)
	retry.Done()
	wantPin(t, b, clients[1], number(retry.Endpoint))
	wantPin(t, b, other, 1)
	wantPin(t, b, clients[2], 2)
}

func TestFailedDialDropsThePinEvenWithoutRetry(t *testing.T) {
	b, clients := pinned(t, 1, 2)
	pick(t, b, client(clients[1])).Failed()
	if pick(t, b, client(clients[1])).Sticky {
		t.Error("sticky to the endpoint that failed")
	}
}

func TestLateFailureLeavesANewerPinAlone(t *testing.T) {
	b, clients := pinned(t, 1, 2)
	early, late := pick(t, b, client(clients[1])), pick(t, b, client(clients[1]))
	early.Failed()
	pick(t, b, client(clients[1]), addr(1)).Done()
	late.Failed()
	wantPin(t, b, clients[1], 2)
}

func TestPinToATriedEndpointIsSkippedAndReplaced(t *testing.T) {
	b, clients := pinned(t, 1, 2)
	p := pick(t, b, client(clients[1]), addr(1))
	if p.Sticky || p.Endpoint != addr(2) {
		t.Errorf("with the pin tried: %v (sticky %v), want %v", p.Endpoint, p.Sticky, addr(2))
	}
	wantPin(t, b, clients[1], 2)
}

func TestPinsSurviveAChangeOfPolicy(t *testing.T) {
	b, clients := pinned(t, 1, 2, 3)
	for _, policy := range balancer.Names() {
		b.Update(policy, time.Hour, endpoints(1, 2, 3))
		for n, c := range clients {
			wantPin(t, b, c, n)
		}
	}
}

func TestFullTableEvictsTheLeastRecentlyUsed(t *testing.T) {
	b := balancer.New(balancer.Config{MaxAffinity: 3})
	defer b.Close()
	b.Update("round-robin", time.Hour, endpoints(1, 2))
	first := visit(t, b, client(1))
	visit(t, b, client(2))
	visit(t, b, client(3))
	wantPin(t, b, 1, first) // now client 2 is the oldest
	visit(t, b, client(4))
	if s := b.Stats(); s.AffinityRecords != 3 || s.AffinityEvicted != 1 {
		t.Errorf("%d records, %d evicted; want 3 and 1", s.AffinityRecords, s.AffinityEvicted)
	}
	wantPin(t, b, 1, first)
	if pick(t, b, client(2)).Sticky {
		t.Error("the oldest record was not the one evicted")
	}
	b.Update("round-robin", 0, endpoints(1, 2))
	if s := b.Stats(); s.AffinityRecords != 0 || s.AffinityEvicted != 2 {
		t.Errorf("%d records, %d evicted; want 0 and 2", s.AffinityRecords, s.AffinityEvicted)
	}
}

func TestTableOfOneRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := balancer.New(balancer.Config{MaxAffinity: 1})
		defer b.Close()
		b.Update("round-robin", time.Minute, endpoints(1, 2))
		for i := range 5 {
			n := visit(t, b, client(i))
			wantPin(t, b, i, n)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := b.Stats(); s.AffinityRecords != 0 || s.AffinityEvicted != 4 {
			t.Errorf("%d records, %d evicted; want 0 and 4", s.AffinityRecords, s.AffinityEvicted)
		}
	})
}

func TestDefaultTableHoldsAHundredThousandClients(t *testing.T) {
	b := newBalancer(t, "round-robin", time.Hour, 1, 2)
	for i := range 100_010 {
		visit(t, b, client(i))
	}
	if s := b.Stats(); s.AffinityRecords != 100_000 || s.AffinityEvicted != 10 {
		t.Errorf("%d records, %d evicted; want 100000 and 10", s.AffinityRecords, s.AffinityEvicted)
	}
}

// heap returns the bytes in use, garbage of earlier tests not counted.
func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func TestEmptiedTableIsFreed(t *testing.T) {
	b := newBalancer(t, "round-robin", time.Hour, 1, 2)
	before := heap()
	for i := range 100_000 {
		visit(t, b, client(i))
	}
	full := heap()
	b.Update("round-robin", 0, endpoints(1, 2))
	if after := heap(); full-before > 25<<20 || after-before > 1<<20 {
		t.Errorf("100,000 records took %d bytes, want 25 MiB at most; %d stayed when they were gone", full-before, after-before)
	}
	runtime.KeepAlive(b)
}

// Endpoints that came and went must leave nothing behind.
func TestDepartedEndpointsAreFreed(t *testing.T) {
	b := newBalancer(t, "round-robin", time.Hour)
	before := heap()
	for i := range 20_000 {
		b.Update("round-robin", time.Hour, endpoints(i))
		p := pick(t, b, client(i))
		b.Update("round-robin", time.Hour, none)
		p.Done()
	}
	if after := heap(); after-before > 1<<20 {
		t.Errorf("the heap grew by %d bytes over 20,000 endpoints", after-before)
	}
	runtime.KeepAlive(b)
}
