package relay_test

import (
	"io"
	"slices"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/proxy/relay"
)

// BenchmarkBulk moves a MiB from client to backend, on one loop.
func BenchmarkBulk(b *testing.B) {
	p := newFrontOf(b, newLoops(b, 1), relay.Limits{}, nil).pair(b)
	buf := make([]byte, 1<<20)
	go func() {
		for {
			if _, err := p.client.Write(buf); err != nil {
				return
			}
		}
	}()
	b.SetBytes(1 << 20)
	in := make([]byte, 1<<20)
	for b.Loop() {
		if _, err := io.ReadFull(p.backend, in); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkExchange is a request of a byte, and its answer, on one loop: alone, and beside
// connections that pass bulk data as fast as they can.
func BenchmarkExchange(b *testing.B) {
	for name, bulk := range map[string]int{"alone": 0, "beside one bulk": 1, "beside four bulk": 4} {
		b.Run(name, func(b *testing.B) {
			front := newFrontOf(b, newLoops(b, 1), relay.Limits{}, nil)
			for range bulk {
				p := front.pair(b)
				go func() {
					for {
						if _, err := p.backend.Write(offered[:]); err != nil {
							return
						}
					}
				}()
				go func() { _, _ = io.Copy(io.Discard, struct{ io.Reader }{p.client}) }()
			}
			p := front.pair(b)
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				exchange(b, p, 1)
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2])/1e3, "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100])/1e3, "p99-µs")
		})
	}
}
