package relay_test

import (
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kube-splice/kube-splice/proxy/relay"
)

// engines are held to the same contract, every one.
var engines = map[string]func() relay.Engine{
	"copy": func() relay.Engine { return relay.NewCopier() },
	"loop": func() relay.Engine {
		loops, err := relay.NewLoops(2)
		if err != nil {
			panic(err)
		}
		return loops
	},
}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// pair is a relayed connection as its two peers see it.
type pair struct {
	client  *net.TCPConn // the client's own end
	backend *net.TCPConn // the backend's own end
	result  chan relay.Result
	stop    func()
}

// onEveryEngine runs a test with a fresh pair on each engine.
func onEveryEngine(t *testing.T, limits relay.Limits, test func(t *testing.T, p *pair)) {
	t.Parallel()
	for name := range engines {
		t.Run(name, func(t *testing.T) { test(t, newPair(t, name, limits)) })
	}
}

// newPair relays between two real connections on loopback, by an engine of its own.
func newPair(t testing.TB, engine string, limits relay.Limits) *pair {
	t.Helper()
	return newFront(t, engine, limits, nil).pair(t)
}

// front is a listener of an engine before a backend. It is the Handler of its listener.
type front struct {
	engine  relay.Engine
	address string           // where clients connect to
	backend *net.TCPListener // where the engine connects to
	limits  relay.Limits
	prepare func(fd int) error // may be nil
	pairs   chan *session
}

// newFront starts an engine that serves one listener. Its pairs are aborted, and it is
// closed, when the test ends.
func newFront(t testing.TB, engine string, limits relay.Limits, prepare func(fd int) error) *front {
	t.Helper()
	return newFrontOf(t, engines[engine](), limits, prepare)
}

// newFrontOf is newFront with an engine that is there.
func newFrontOf(t testing.TB, engine relay.Engine, limits relay.Limits, prepare func(fd int) error) *front {
	t.Helper()
	f := &front{engine: engine, backend: listen(t), limits: limits, prepare: prepare, pairs: make(chan *session, 100)}
	ln := listen(t)
	f.address = ln.Addr().String()
	l, err := f.engine.Listen(ln, f)
	check(t, err)
	t.Cleanup(func() {
		l.Close()
		f.engine.Close()
		_ = f.backend.Close()
	})
	return f
}

func listen(t testing.TB) *net.TCPListener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	return ln.(*net.TCPListener)
}

// pair connects a client.
func (f *front) pair(t testing.TB) *pair {
	t.Helper()
	client, err := net.Dial("tcp", f.address)
	check(t, err)
	backend, err := f.backend.AcceptTCP()
	check(t, err)
	p := &pair{client: client.(*net.TCPConn), backend: backend, result: (<-f.pairs).result, stop: f.engine.Abort}
	t.Cleanup(func() {
		_ = p.client.Close()
		_ = p.backend.Close()
	})
	return p
}

// Reserve, Release, Short, TurnedAway and Arrive make a front a relay.Handler.
func (f *front) Reserve() bool                    { return true }
func (f *front) Release()                         {}
func (f *front) Short(error)                      {}
func (f *front) TurnedAway(netip.AddrPort, error) {}
func (f *front) Arrive(int, netip.AddrPort) relay.Session {
	s := &session{front: f, result: make(chan relay.Result, 1)}
	f.pairs <- s
	return s
}

// session leads a client to the front's backend.
type session struct {
	front  *front
	result chan relay.Result
}

func (s *session) Next(failed error) (relay.Dial, error) {
	return relay.Dial{Backend: s.front.backend.Addr().(*net.TCPAddr).AddrPort(), Limit: 10 * time.Second}, failed
}

func (s *session) Prepare(fd int) error {
	if s.front.prepare == nil {
		return nil
	}
	return s.front.prepare(fd)
}

func (s *session) Connected() relay.Limits { return s.front.limits }
func (s *session) Done(r relay.Result)     { s.result <- r }

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
