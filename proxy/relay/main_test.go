package relay_test

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kube-splice/kube-splice/proxy/relay"
)

// engines are held to the same contract, every one.
var engines = map[string]relay.Engine{"copy": &relay.Copier{}}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// pair is a relayed connection as its two peers see it.
type pair struct {
	client  *net.TCPConn // the client's own end
	backend *net.TCPConn // the backend's own end
	result  chan relay.Result
	stop    context.CancelFunc
}

// onEveryEngine runs a test with a fresh pair on each engine.
func onEveryEngine(t *testing.T, limits relay.Limits, test func(t *testing.T, p *pair)) {
	t.Parallel()
	for name, engine := range engines {
		t.Run(name, func(t *testing.T) { test(t, newPair(t, engine, limits)) })
	}
}

// newPair relays between two real connections on loopback.
func newPair(t testing.TB, engine relay.Engine, limits relay.Limits) *pair {
	t.Helper()
	p, _ := newPairWithBackend(t, engine, limits)
	return p
}

// newPairWithBackend returns the engine's end of the backend's connection too.
func newPairWithBackend(t testing.TB, engine relay.Engine, limits relay.Limits) (*pair, *net.TCPConn) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	p := &pair{result: make(chan relay.Result, 1), stop: stop}
	var client, backend *net.TCPConn
	p.client, client = connected(t)
	backend, p.backend = connected(t)
	go engine.Relay(ctx, relay.Pair{Client: client, Backend: backend, Limits: limits}, func(r relay.Result) { p.result <- r })
	t.Cleanup(func() {
		stop()
		_ = p.client.Close()
		_ = p.backend.Close()
		if len(p.result) == 0 && !t.Failed() {
			p.end(t)
		}
	})
	return p, backend
}

// connected returns the two ends of a connection: dialled, accepted.
func connected(t testing.TB) (*net.TCPConn, *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer func() { _ = ln.Close() }()
	dialled, err := net.Dial("tcp", ln.Addr().String())
	check(t, err)
	accepted, err := ln.Accept()
	check(t, err)
	return dialled.(*net.TCPConn), accepted.(*net.TCPConn)
}

// end waits for the pair's result.
func (p *pair) end(t testing.TB) relay.Result {
	t.Helper()
	select {
	case r := <-p.result:
		p.result <- r
		return r
	case <-time.After(20 * time.Second):
		t.Fatal("the pair did not end")
		panic("unreachable")
	}
}

func (p *pair) wantCause(t testing.TB, want relay.Cause) {
	t.Helper()
	if r := p.end(t); r.Cause != want {
		t.Errorf("the pair ended by cause %d (%v), want %d", r.Cause, r.Err, want)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// send writes n bytes and fails the test if it cannot.
func send(t testing.TB, c net.Conn, n int) {
	t.Helper()
	_, err := c.Write(make([]byte, n))
	check(t, err)
}

// receive reads exactly n bytes.
func receive(t testing.TB, c net.Conn, n int) {
	t.Helper()
	check(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
	if got, err := io.ReadFull(c, make([]byte, n)); err != nil {
		t.Fatalf("read %d of %d bytes: %v", got, n, err)
	}
}

// drain reads to the end and returns the number of bytes and how it ended. The
// Go runtime may refuse to read in the moment a reset arrives (see copyToEnd); that
// is not the end.
func drain(t testing.TB, c net.Conn) (sum int64, err error) {
	t.Helper()
	check(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
	for {
		n, err := io.Copy(io.Discard, struct{ io.Reader }{c})
		sum += n
		if err == nil || !strings.HasSuffix(err.Error(), "not pollable") {
			return sum, err
		}
		time.Sleep(time.Millisecond)
	}
}

// descriptors counts this process's open descriptors.
func descriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	check(t, err)
	return len(entries)
}
