package proxy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/kube-splice/kube-splice/service"
)

// ConnectionLog writes one line a connection. Records wait in a bounded queue for
// the goroutine that writes; when the sink is too slow they are dropped, because the
// data path must not wait for a disk or a pipe. Those, and those the sink refused, are
// counted.
type ConnectionLog struct {
	out     slog.Handler
	log     *slog.Logger
	queue   chan Record
	dropped atomic.Int64
	said    atomic.Int64          // how many of them the operator knows of
	fault   atomic.Pointer[error] // the last one of the sink
	lossy   chan struct{}         // a token when records have been dropped
	closing chan struct{}
	done    chan struct{}
}

// queueLength is how many records may wait: some seconds of a busy node.
const queueLength = 8192

// NewConnectionLog returns a ConnectionLog that writes to sink, as JSON or as
// text, and tells log when it had to drop records. Close ends it. The sink stays
// the caller's.
func NewConnectionLog(sink io.Writer, json bool, log *slog.Logger) *ConnectionLog {
	options := &slog.HandlerOptions{ReplaceAttr: withoutLevel}
	var out slog.Handler = slog.NewTextHandler(sink, options)
	if json {
		out = slog.NewJSONHandler(sink, options)
	}
	l := &ConnectionLog{
		out: out, log: log,
		queue: make(chan Record, queueLength), done: make(chan struct{}),
		lossy: make(chan struct{}, 1), closing: make(chan struct{}),
	}
	go l.write()
	go l.warn()
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
		l.lose()
	}
}

// lose counts a record that will not be in the log.
func (l *ConnectionLog) lose() {
	l.dropped.Add(1)
	select {
	case l.lossy <- struct{}{}:
	default: // it has been told and not been heard yet
	}
}

// Dropped returns how many records have been dropped.
func (l *ConnectionLog) Dropped() int64 { return l.dropped.Load() }

// Close writes what is queued, until ctx ends at most. Record must not be called
// any more.
func (l *ConnectionLog) Close(ctx context.Context) {
	close(l.queue)
	close(l.closing)
	defer l.sayDropped()
	select {
	case <-l.done:
	case <-ctx.Done():
		l.log.Warn("connection log: its sink takes nothing; the last records are lost", "records", len(l.queue))
	}
}

// write is the goroutine that writes records.
func (l *ConnectionLog) write() {
	defer close(l.done)
	for r := range l.queue {
		if err := r.write(l.out); err != nil {
			l.fault.Store(&err)
			l.lose()
		}
	}
}

// warn is the goroutine that says how many records were dropped, once an interval.
// It is not the one that writes, because that may hang in the sink for ever.
func (l *ConnectionLog) warn() {
	const interval = 10 * time.Second
	for {
		select {
		case <-l.lossy:
		case <-l.closing:
			return
		}
		l.sayDropped()
		select {
		case <-time.After(interval):
		case <-l.closing:
			return
		}
	}
}

// sayDropped tells the operator of records dropped since it was called last.
func (l *ConnectionLog) sayDropped() {
	n := l.dropped.Load()
	if before := l.said.Swap(n); n > before {
		reason := errors.New("the sink is too slow")
		if fault := l.fault.Swap(nil); fault != nil {
			reason = *fault
		}
		l.log.Warn("connection log: records were dropped", "records", n-before, "error", reason)
	}
}

// write logs the record. The keys are a contract with whoever reads the log.
func (r *Record) write(out slog.Handler) error {
	message := ""
	if r.Err != nil {
		message = r.Err.Error()
	}
	line := slog.NewRecord(r.Ended, slog.LevelInfo, "connection", 0)
	line.AddAttrs(
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
	)
	if r.Name.Protocol == service.UDP {
		line.AddAttrs(slog.Int64("datagrams_up", r.DatagramsUp), slog.Int64("datagrams_down", r.DatagramsDown))
	}
	line.AddAttrs(
		slog.String("close", string(r.Close)),
		slog.String("error", message),
	)
	if r.ClientIP != "" {
		line.AddAttrs(slog.String("client_ip", string(r.ClientIP)))
	}
	if r.Scope == service.Local {
		line.AddAttrs(slog.String("policy", "local"))
	}
	if r.Peer.IsValid() {
		line.AddAttrs(slog.String("peer", text(r.Peer)))
	}
	if r.UniqueID != "" {
		line.AddAttrs(slog.String("unique_id", r.UniqueID))
	}
	return out.Handle(context.Background(), line)
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
