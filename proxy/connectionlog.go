package proxy

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"
)

// ConnectionLog writes one line a connection. Records wait in a bounded queue for
// the goroutine that writes; when the sink is too slow they are dropped and
// counted, because the data path must not wait for a disk or a pipe.
type ConnectionLog struct {
	out     *slog.Logger
	log     *slog.Logger
	queue   chan Record
	dropped atomic.Int64
	done    chan struct{}
}

// queueLength is how many records may wait: some seconds of a busy node.
const queueLength = 8192

// NewConnectionLog returns a ConnectionLog that writes to sink, as JSON or as
// text, and tells log when it had to drop records. Close ends it. The sink stays
// the caller's.
func NewConnectionLog(sink io.Writer, json bool, log *slog.Logger) *ConnectionLog {
	options := &slog.HandlerOptions{ReplaceAttr: withoutLevel}
	var handler slog.Handler = slog.NewTextHandler(sink, options)
	if json {
		handler = slog.NewJSONHandler(sink, options)
	}
	l := &ConnectionLog{
		out: slog.New(handler), log: log,
		queue: make(chan Record, queueLength), done: make(chan struct{}),
	}
	go l.write()
	return l
}

// Record queues a record. It never blocks.
func (l *ConnectionLog) Record(r Record) {
	if r.LogOff {
		return
	}
	select {
	case l.queue <- r:
	default:
		l.dropped.Add(1)
	}
}

// Dropped returns how many records have been dropped.
func (l *ConnectionLog) Dropped() int64 { return l.dropped.Load() }

// Close writes what is queued, until ctx ends at most. Record must not be called
// any more.
func (l *ConnectionLog) Close(ctx context.Context) {
	close(l.queue)
	select {
	case <-l.done:
	case <-ctx.Done():
		l.log.Warn("connection log: its sink takes nothing; the last records are lost", "records", len(l.queue))
	}
}

// write is the goroutine that writes records.
func (l *ConnectionLog) write() {
	defer close(l.done)
	const interval = 10 * time.Second
	var told int64
	next := time.Time{}
	tell := func() {
		if n := l.dropped.Load(); n > told {
			l.log.Warn("connection log: the sink is too slow; records were dropped", "records", n-told)
			told, next = n, time.Now().Add(interval)
		}
	}
	for r := range l.queue {
		r.write(l.out)
		if time.Now().After(next) {
			tell()
		}
	}
	tell()
}

// write logs the record. The keys are a contract with whoever reads the log.
func (r *Record) write(out *slog.Logger) {
	message := ""
	if r.Err != nil {
		message = r.Err.Error()
	}
	out.LogAttrs(context.Background(), slog.LevelInfo, "connection",
		slog.String("proto", string(r.Name.Protocol)),
		slog.String("service", r.Name.String()),
		slog.String("client", text(r.Client)),
		slog.String("original", text(r.Original)),
		slog.String("backend", text(r.Backend)),
		slog.Int("attempts", r.Attempts),
		slog.Bool("sticky", r.Sticky),
		slog.Float64("dial_ms", milliseconds(r.Dial)),
		slog.Float64("duration_ms", milliseconds(r.Duration)),
		slog.Int64("bytes_up", r.Up),
		slog.Int64("bytes_down", r.Down),
		slog.String("close", string(r.Close)),
		slog.String("error", message),
	)
}

func text(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// withoutLevel leaves the level out: every line has the same.
func withoutLevel(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.LevelKey {
		return slog.Attr{}
	}
	return a
}
