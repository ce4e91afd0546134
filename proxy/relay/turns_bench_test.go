package relay_test

import (
	"io"
	"net"
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

// BenchmarkExchange is a request of a byte, and its answer, on one loop: alone, beside
// connections that pass bulk data as fast as they can, and beside one that does so without
// the engine, which takes as much of the processors.
func BenchmarkExchange(b *testing.B) {
	for _, beside := range []struct {
		name         string
		bulk, direct int
	}{{"alone", 0, 0}, {"beside one bulk", 1, 0}, {"beside four bulk", 4, 0}, {"beside one bulk that is not relayed", 0, 1}} {
		b.Run(beside.name, func(b *testing.B) {
			front := newFrontOf(b, newLoops(b, 1), relay.Limits{}, nil)
			for range beside.bulk {
				p := front.pair(b)
				pour(p.backend, p.client)
			}
			for range beside.direct {
				to, err := net.Dial("tcp", front.backend.Addr().String())
				check(b, err)
				from, err := front.backend.Accept()
				check(b, err)
				b.Cleanup(func() { _ = to.Close(); _ = from.Close() })
				pour(from, to)
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

// pour writes and reads until the connection ends.
func pour(from, to net.Conn) {
	go func() {
		for {
			if _, err := from.Write(offered[:]); err != nil {
				return
			}
		}
	}()
	go func() { _, _ = io.Copy(io.Discard, struct{ io.Reader }{to}) }()
}
