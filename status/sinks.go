package status

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	gometrics "github.com/hashicorp/go-metrics"
)

// What the memory sink keeps: short intervals, so that an operator sees a change, and
// few of them.
const (
	memoryInterval = 10 * time.Second
	memoryRetained = time.Minute
)

// preciseSink is a sink with gauges of 64 bits, which times need.
type preciseSink interface {
	gometrics.MetricSink
	gometrics.PrecisionGaugeMetricSink
}

// totals passes events on without their Service: a sink that cannot forget would grow
// with every Service that ever was.
type totals struct{ preciseSink }

func (t totals) IncrCounterWithLabels(key []string, val float32, labels []gometrics.Label) {
	if len(labels) > 0 && labels[0].Name == serviceLabels[0] {
		labels = labels[len(serviceLabels):]
	}
	t.preciseSink.IncrCounterWithLabels(key, val, labels)
}

// newStatsd returns a sink that sends to a statsd server at host:port over UDP.
func newStatsd(address string, log *slog.Logger) (*gometrics.StatsdSink, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, fmt.Errorf("statsd address %q: want host:port: %w", address, err)
	}
	return gometrics.NewStatsdSinkWithLogger(address, &newsOnly{log: log})
}

// newsOnly says what the statsd sink says, and not the same twice in a row: it tries
// every five seconds. It is called from the sink's goroutine only.
type newsOnly struct {
	log  *slog.Logger
	last string
}

func (n *newsOnly) Warn(msg string, args ...any)  { n.say(msg, args) }
func (n *newsOnly) Error(msg string, args ...any) { n.say(msg, args) }

func (n *newsOnly) say(msg string, args []any) {
	if text := fmt.Sprint(msg, args); text != n.last {
		n.last = text
		n.log.Warn("statsd: events are lost while its server is away", append([]any{"trouble", msg}, args...)...)
	}
}

// dump writes what the sink holds of the last minute, the oldest interval first.
func dump(w io.Writer, memory *gometrics.InmemSink) error {
	var text strings.Builder
	since := time.Now().Add(-memoryRetained)
	fmt.Fprintf(&text, "events since %s\n", since.UTC().Format(time.RFC3339))
	for _, interval := range memory.Data() {
		if interval.Interval.Before(since) { // nothing has come that would have pushed it out
			continue
		}
		interval.RLock()
		at := interval.Interval.UTC().Format(time.RFC3339)
		for _, key := range slices.Sorted(maps.Keys(interval.PrecisionGauges)) {
			g := interval.PrecisionGauges[key]
			fmt.Fprintf(&text, "%s gauge %s%s %g\n", at, g.Name, labelText(g.Labels), g.Value)
		}
		for _, key := range slices.Sorted(maps.Keys(interval.Counters)) {
			c := interval.Counters[key]
			fmt.Fprintf(&text, "%s counter %s%s %g\n", at, c.Name, labelText(c.Labels), c.Sum)
		}
		for _, key := range slices.Sorted(maps.Keys(interval.Samples)) {
			s := interval.Samples[key]
			fmt.Fprintf(&text, "%s sample %s%s count=%d min=%.6g mean=%.6g max=%.6g\n", at, s.Name, labelText(s.Labels), s.Count, s.Min, s.AggregateSample.Mean(), s.Max)
		}
		interval.RUnlock()
	}
	_, err := io.WriteString(w, text.String())
	return err
}

func labelText(labels []gometrics.Label) string {
	if len(labels) == 0 {
		return ""
	}
	parts := make([]string, len(labels))
	for i, l := range labels {
		parts[i] = fmt.Sprintf("%s=%q", l.Name, l.Value)
	}
	return "{" + strings.Join(parts, ",") + "}"
}
