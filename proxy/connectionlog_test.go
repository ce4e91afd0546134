package proxy_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
)

var ended = time.Date(2026, 11, 30, 12, 0, 0, 5e6, time.UTC)

func aRecord() proxy.Record {
	return proxy.Record{
		Name:   newPort("web").Name,
		Client: netip.MustParseAddrPort("10.244.1.50:40000"), Original: netip.MustParseAddrPort("10.96.0.10:80"),
		Backend: netip.MustParseAddrPort("10.244.1.11:8080"), Attempts: 2, Sticky: true,
		Dial: 1500 * time.Microsecond, Duration: 2 * time.Second, Ended: ended, Up: 5, Down: 7,
		Close: proxy.BackendReset, Err: errors.New("connection reset by peer"),
	}
}

// written returns what a connection log makes of records.
func written(t *testing.T, asJSON bool, records ...proxy.Record) string {
	t.Helper()
	var out logText
	l := proxy.NewConnectionLog(&out, asJSON, slog.New(slog.DiscardHandler))
	for _, r := range records {
		l.Record(r)
	}
	l.Close(context.Background())
	return out.String()
}

func TestConnectionLogKeysAreFixed(t *testing.T) {
	var line map[string]any
	check(t, json.Unmarshal([]byte(written(t, true, aRecord())), &line))
	want := map[string]any{
		"msg": "connection", "proto": "tcp", "service": "default/web:http",
		"client": "10.244.1.50:40000", "original": "10.96.0.10:80", "backend": "10.244.1.11:8080",
		"attempts": 2.0, "sticky": true, "dial_ms": 1.5, "duration_ms": 2000.0,
		"bytes_up": 5.0, "bytes_down": 7.0, "close": "backend-reset", "error": "connection reset by peer",
	}
	if at, err := time.Parse(time.RFC3339Nano, line["time"].(string)); err != nil || !at.Equal(ended) {
		t.Errorf("time is %v (%v), want the connection's end", line["time"], err)
	}
	delete(line, "time")
	if !maps.Equal(line, want) {
		t.Errorf("line %v, want %v", line, want)
	}
}

func TestConnectionLogKeysAreThereWhenNothingIsKnown(t *testing.T) {
	line := map[string]any{}
	check(t, json.Unmarshal([]byte(written(t, true, proxy.Record{Name: newPort("web").Name, Ended: ended, Close: proxy.RefusedDirect})), &line))
	keys := slices.Sorted(maps.Keys(line))
	want := strings.Fields("attempts backend bytes_down bytes_up client close dial_ms duration_ms error msg original proto service sticky time")
	if !slices.Equal(keys, want) {
		t.Errorf("keys %v, want %v", keys, want)
	}
	if line["backend"] != "" || line["error"] != "" || line["original"] != "" {
		t.Errorf("what is not known is not empty: %v", line)
	}
}

func TestConnectionLogTellsWhoGotLocalEndpointsOnly(t *testing.T) {
	local := aRecord()
	local.Scope = service.Local
	if line := written(t, true, local); !strings.Contains(line, `"policy":"local"`) {
		t.Errorf("line %s, want the policy in it", line)
	}
}

func TestConnectionLogAsText(t *testing.T) {
	line := written(t, false, aRecord())
	for _, part := range []string{"msg=connection", "service=default/web:http", "close=backend-reset", `error="connection reset by peer"`} {
		if !strings.Contains(line, part) || strings.Contains(line, "level=") {
			t.Errorf("line %q, want %s in it and no level", line, part)
		}
	}
}

func TestServiceMayKeepItsConnectionsOutOfTheLog(t *testing.T) {
	quiet := aRecord()
	quiet.LogOff = true
	if out := written(t, true, quiet); out != "" {
		t.Errorf("logged %s", out)
	}
}

func TestSinkThatTakesNothingCostsRecordsNotTime(t *testing.T) {
	reader, sink := io.Pipe()
	var log logText
	l := proxy.NewConnectionLog(sink, true, slog.New(slog.NewTextHandler(&log, nil)))
	const records = 20_000
	watch := lab.StartStopwatch()
	for range records {
		l.Record(aRecord())
	}
	if took := watch.Elapsed(); took > 5*time.Second {
		t.Errorf("recording took %v", took)
	}
	dropped := l.Dropped()
	if dropped == 0 || dropped >= records {
		t.Fatalf("%d of %d records were dropped", dropped, records)
	}
	lines := make(chan int64)
	go func() { lines <- countLines(reader) }()
	l.Close(context.Background())
	_ = sink.Close()
	if n := <-lines; n != records-dropped {
		t.Errorf("%d written and %d dropped of %d", n, dropped, records)
	}
	if !strings.Contains(log.String(), "dropped") {
		t.Errorf("the loss was not said: %s", log.String())
	}
}

func countLines(r io.Reader) int64 {
	text, _ := io.ReadAll(r)
	return int64(strings.Count(string(text), "\n"))
}

func TestRecordsThatTheSinkRefusesAreCountedAndSaid(t *testing.T) {
	reader, sink := io.Pipe()
	check(t, reader.CloseWithError(errors.New("no space left on device")))
	var log logText
	l := proxy.NewConnectionLog(sink, true, slog.New(slog.NewTextHandler(&log, nil)))
	l.Record(aRecord())
	l.Close(context.Background())
	if l.Dropped() != 1 || log.count("no space left on device") != 1 {
		t.Errorf("%d counted as dropped, and said: %s", l.Dropped(), log.String())
	}
}

func TestClosingDoesNotWaitForASinkForEver(t *testing.T) {
	reader, sink := io.Pipe()
	var log logText
	l := proxy.NewConnectionLog(sink, true, slog.New(slog.NewTextHandler(&log, nil)))
	l.Record(aRecord())
	l.Record(aRecord())
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	l.Close(ctx)
	if !strings.Contains(log.String(), "lost") {
		t.Errorf("the loss was not said: %s", log.String())
	}
	_ = reader.Close() // lets the writer end
}
