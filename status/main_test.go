package status_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kube-splice/kube-splice/lab"
	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/status"
)

// The tests run in a network namespace, where every port is free.
func TestMain(m *testing.M) {
	if err := lab.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, "the tests need a network namespace:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serve runs a server of handler on an address of its own until the test ends.
func serve(t testing.TB, handler http.Handler) (url string) {
	t.Helper()
	bound := make(chan netip.AddrPort, 1)
	s := status.Server{Name: "test", Address: "127.0.0.1:0", HardFail: true, Listening: func(a netip.AddrPort) { bound <- a }}
	run(t, s, handler)
	return "http://" + (<-bound).String()
}

// run runs a server until the test ends or stop is called.
func run(t testing.TB, s status.Server, handler http.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.Run(ctx, handler); err != nil {
			t.Error(err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	return stop
}

// answer is what came back from a request.
type answer struct {
	code   int
	header http.Header
	body   string
}

// get asks on a connection of its own.
func get(t testing.TB, url string) answer {
	t.Helper()
	client := &http.Client{
		Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Get(url)
	check(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	check(t, err)
	return answer{resp.StatusCode, resp.Header, string(body)}
}

// wantAnswer compares an answer; of headers, those that the server chooses.
func wantAnswer(t testing.TB, got answer, code int, contentType, body string) {
	t.Helper()
	if got.code != code {
		t.Errorf("status %d, want %d", got.code, code)
	}
	if got.body != body {
		t.Errorf("body\n%s\nwant\n%s", got.body, body)
	}
	if ct := got.header.Get("Content-Type"); ct != contentType {
		t.Errorf("Content-Type %q, want %q", ct, contentType)
	}
	if n := got.header.Get("X-Content-Type-Options"); n != "nosniff" {
		t.Errorf("X-Content-Type-Options %q, want nosniff", n)
	}
}

func wantClosed(t testing.TB, address string) {
	t.Helper()
	if conn, err := net.DialTimeout("tcp", address, 5*time.Second); err == nil {
		_ = conn.Close()
		t.Errorf("%s still takes connections", address)
	}
}

func newMetrics(t testing.TB, cfg status.MetricsConfig) *status.Metrics {
	t.Helper()
	m, err := status.NewMetrics(cfg)
	check(t, err)
	t.Cleanup(m.Close)
	return m
}

// newPort returns an IPv4 Service port.
func newPort(name string, endpoints ...string) *service.Port {
	p := &service.Port{
		Name:   service.Name{Namespace: "default", Service: name, Port: "http", Protocol: service.TCP, Family: service.IPv4},
		Number: 80, ClusterIP: netip.MustParseAddr("10.96.0.10"),
	}
	for _, e := range endpoints {
		p.Endpoints = append(p.Endpoints, service.Endpoint{Addr: netip.MustParseAddrPort(e), Ready: true, Serving: true})
	}
	return p
}

func snapshot(ports ...*service.Port) *service.Snapshot { return &service.Snapshot{Ports: ports} }

// logText keeps a log.
type logText struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	wrote chan struct{}
}

func newLog() (*slog.Logger, *logText) {
	text := &logText{wrote: make(chan struct{}, 100)}
	return slog.New(slog.NewTextHandler(text, nil)), text
}

func (l *logText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.wrote <- struct{}{}:
	default:
	}
	return l.buf.Write(b)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logText) count(text string) int { return strings.Count(l.String(), text) }
