package balancer_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/service"
)

// BenchmarkPick measures one Pick and its Done, from several goroutines at once,
// by 1,000 clients in turn, every endpoint having been dialled once.
func BenchmarkPick(b *testing.B) {
	for _, policy := range balancer.Names() {
		for _, n := range []int{10, 1000} {
			for _, affinity := range []time.Duration{0, time.Hour} {
				b.Run(fmt.Sprintf("%s/endpoints=%d/affinity=%v", policy, n, affinity), func(b *testing.B) {
					benchmarkPick(b, newBalancer(b, policy, affinity, upTo(n)...))
				})
			}
		}
	}
}

func benchmarkPick(b *testing.B, balancer *balancer.Balancer) {
	for range balancer.Stats().Endpoints {
		pick(b, balancer, client(0)).Connected(5 * time.Millisecond)
	}
	b.ReportAllocs()
	var worker atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		for i := int(worker.Add(1)) * 500; pb.Next(); i++ {
			p, err := balancer.Pick(service.Cluster, client(i%1000), nil)
			if err != nil {
				b.Error(err)
				return
			}
			p.Done()
		}
	})
}

// BenchmarkPickNewClient measures the making, and evicting, of affinity records.
func BenchmarkPickNewClient(b *testing.B) {
	balancer := newBalancer(b, "round-robin", time.Hour, upTo(10)...)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if p, err := balancer.Pick(service.Cluster, client(i%(1<<24)), nil); err == nil {
			p.Done()
		}
	}
}

// BenchmarkRemoveEndpoint measures the update that takes away one of ten
// endpoints and its tenth of 100,000 affinity records.
func BenchmarkRemoveEndpoint(b *testing.B) {
	less := endpoints(upTo(9)...)
	for b.Loop() {
		b.StopTimer()
		balancer := newBalancer(b, "round-robin", time.Hour, upTo(10)...)
		for i := range 100_000 {
			if p, err := balancer.Pick(service.Cluster, client(i), nil); err == nil {
				p.Done()
			}
		}
		b.StartTimer()
		balancer.Update("round-robin", time.Hour, less)
		b.StopTimer()
		balancer.Close()
		b.StartTimer()
	}
}

// BenchmarkNoopUpdate measures an update that says what is known already.
func BenchmarkNoopUpdate(b *testing.B) {
	balancer := newBalancer(b, "round-robin", time.Hour, upTo(1000)...)
	same := endpoints(upTo(1000)...)
	b.ReportAllocs()
	for b.Loop() {
		balancer.Update("round-robin", time.Hour, same)
	}
}
