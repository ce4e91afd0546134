package relay_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/proxy/relay"
)

// announcing is a front whose clients begin with a line, and whose backend is sent one.
type announcing struct {
	*front
	limit    time.Duration // for the client's line; 0: it sends none
	announce string
	prepared atomic.Pointer[func(fd int) error] // what is done to backends' sockets
	asked    atomic.Int64                       // calls of Next before the line was complete
	sessions chan *announced
	address  string
}

// announced is a Session with a Preamble.
type announced struct {
	relay.Session
	of       *announcing
	received atomic.Pointer[string]
	result   chan relay.Result
}

var errNoLine = errors.New("not a line")

func (a *announcing) Arrive(fd int, client netip.AddrPort) relay.Session {
	s := &announced{Session: a.front.Arrive(fd, client), of: a, result: (<-a.pairs).result}
	a.sessions <- s
	return s
}

func (s *announced) Expect() time.Duration { return s.of.limit }
func (s *announced) Received(b []byte) (int, error) {
	if b[0] == '!' {
		return 0, errNoLine
	}
	line, _, complete := strings.Cut(string(b), "\n")
	if !complete {
		return 0, nil
	}
	s.received.Store(&line)
	return len(line) + 1, nil
}

func (s *announced) Next(failed error) (relay.Dial, error) {
	if s.of.limit > 0 && s.received.Load() == nil {
		s.of.asked.Add(1)
	}
	return s.Session.Next(failed)
}

func (s *announced) Announce() []byte { return []byte(s.of.announce) }

// onEveryEngineAnnouncing runs a test on each engine.
func onEveryEngineAnnouncing(t *testing.T, limit time.Duration, announce string, test func(t *testing.T, a *announcing)) {
	t.Parallel()
	for name := range engines {
		t.Run(name, func(t *testing.T) { test(t, newAnnouncing(t, name, limit, announce)) })
	}
}

func newAnnouncing(t *testing.T, engine string, limit time.Duration, announce string) *announcing {
	t.Helper()
	a := &announcing{limit: limit, announce: announce, sessions: make(chan *announced, 1000)}
	a.front = newFront(t, engine, relay.Limits{}, func(fd int) error {
		if prepare := a.prepared.Load(); prepare != nil {
			return (*prepare)(fd)
		}
		return nil
	})
	ln := listen(t)
	a.address = ln.Addr().String()
	l, err := a.engine.Listen(ln, a)
	check(t, err)
	t.Cleanup(func() {
		l.Close()
		if n := a.asked.Load(); n != 0 {
			t.Errorf("Next was called %d times before the preamble was complete", n)
		}
	})
	return a
}

// client connects one that writes pieces, a segment each.
func (a *announcing) client(t testing.TB, pieces ...string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", a.address)
	check(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	for i, piece := range pieces {
		if i > 0 {
			awaitTaken(t, conn.(*net.TCPConn))
		}
		_, err := io.WriteString(conn, piece)
		check(t, err)
	}
	return conn.(*net.TCPConn)
}

// awaitTaken waits until the peer's kernel has acknowledged everything.
func awaitTaken(t testing.TB, conn *net.TCPConn) {
	t.Helper()
	raw, err := conn.SyscallConn()
	check(t, err)
	for n := 1; n > 0; {
		check(t, raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }))
		check(t, err)
	}
}

func (a *announcing) accept(t testing.TB) *net.TCPConn {
	t.Helper()
	check(t, a.backend.SetDeadline(time.Now().Add(20*time.Second)))
	conn, err := a.backend.AcceptTCP()
	check(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (a *announcing) session() *announced { return <-a.sessions }

// end waits for the session's result.
func (s *announced) end(t testing.TB) relay.Result {
	t.Helper()
	return (&pair{result: s.result}).end(t)
}

func wantBytes(t testing.TB, conn net.Conn, want string) {
	t.Helper()
	check(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("read %q (%v), want %q", got[:n], err, want)
	}
}

func TestPreambleIsTheSessionsAndTheRestIsTheBackends(t *testing.T) {
	long := strings.Repeat("p", 4000)
	onEveryEngineAnnouncing(t, time.Hour, "", func(t *testing.T, a *announcing) {
		for name, pieces := range map[string][]string{
			"at once":          {"hello\nhi"},
			"apart":            {"hello\n", "hi"},
			"cut":              {"hel", "lo\nhi"},
			"cut at the end":   {"hello", "\n", "hi"},
			"in bytes":         strings.Split("hello\nhi", ""),
			"long":             {long + "\nhi"},
			"long and in bits": append(slices.Collect(chunks(long, 400)), "\nhi"),
		} {
			t.Run(name, func(t *testing.T) {
				client, s := a.client(t, pieces...), a.session()
				backend := a.accept(t)
				check(t, client.CloseWrite())
				wantBytes(t, backend, "hi")
				if n, err := drain(t, backend); n != 0 || err != nil {
					t.Errorf("the backend read %d bytes more, %v", n, err)
				}
				send(t, backend, 5)
				check(t, backend.Close())
				receive(t, client, 5)
				want, _, _ := strings.Cut(strings.Join(pieces, ""), "\n")
				if got := *s.received.Load(); got != want {
					t.Errorf("the session was given %q, want %q", got, want)
				}
				if r := s.end(t); r != (relay.Result{Up: 2, Down: 5, Cause: relay.ClientClosed}) {
					t.Errorf("result %+v", r)
				}
			})
		}
	})
}

// chunks cuts s into pieces of n bytes.
func chunks(s string, n int) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for c := range slices.Chunk([]byte(s), n) {
			if !yield(string(c)) {
				return
			}
		}
	}
}

func TestPreambleThatDoesNotComeInTimeEndsTheConnection(t *testing.T) {
	onEveryEngineAnnouncing(t, 200*time.Millisecond, "", func(t *testing.T, a *announcing) {
		silent := a.client(t)
		s, began := a.session(), time.Now()
		wantReset(t, silent)
		if r := s.end(t); r.Cause != relay.Unserved || !errors.Is(r.Err, relay.ErrPreambleLate) || time.Since(began) < 150*time.Millisecond {
			t.Errorf("result %+v after %v", r, time.Since(began))
		}

		drips := a.client(t)
		s = a.session()
		stop := make(chan struct{})
		defer close(stop)
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
					if _, err := drips.Write([]byte("x")); err != nil {
						return
					}
				}
			}
		}()
		if r := s.end(t); r.Cause != relay.Unserved || !errors.Is(r.Err, relay.ErrPreambleLate) {
			t.Errorf("result %+v of a client that sends a byte at a time", r)
		}
	})
}

func TestTimeForThePreambleIsOverWithIt(t *testing.T) {
	onEveryEngineAnnouncing(t, 300*time.Millisecond, "", func(t *testing.T, a *announcing) {
		for _, pieces := range [][]string{{"hello\n"}, {"hel", "lo\n"}} {
			client, s := a.client(t, pieces...), a.session()
			backend := a.accept(t)
			time.Sleep(500 * time.Millisecond)
			send(t, client, 10)
			receive(t, backend, 10)
			check(t, client.Close())
			check(t, backend.Close())
			if r := s.end(t); r.Err != nil {
				t.Errorf("result %+v", r)
			}
		}
	})
}

func TestClientThatEndsBeforeItsPreambleDoesIsEndedAtOnce(t *testing.T) {
	onEveryEngineAnnouncing(t, time.Hour, "", func(t *testing.T, a *announcing) {
		for _, sent := range []string{"", "hel"} {
			client, s := a.client(t, sent), a.session()
			awaitTaken(t, client)
			check(t, client.CloseWrite())
			if r := s.end(t); r.Cause != relay.Unserved || !errors.Is(r.Err, relay.ErrPreambleCut) {
				t.Errorf("after %q and FIN: result %+v", sent, r)
			}
			client, s = a.client(t, sent), a.session()
			awaitTaken(t, client)
			check(t, client.SetLinger(0))
			check(t, client.Close())
			if r := s.end(t); r.Cause != relay.ClientReset || !errors.Is(r.Err, syscall.ECONNRESET) {
				t.Errorf("after %q and RST: result %+v", sent, r)
			}
		}
	})
}

func TestBytesThatAreNoPreambleEndTheConnection(t *testing.T) {
	onEveryEngineAnnouncing(t, time.Hour, "", func(t *testing.T, a *announcing) {
		client, s := a.client(t, "!hello\n"), a.session()
		if r := s.end(t); r != (relay.Result{Cause: relay.Unserved, Err: errNoLine}) {
			t.Errorf("result %+v", r)
		}
		wantReset(t, client)
	})
}

func TestAbortEndsThoseThatWaitForAPreamble(t *testing.T) {
	onEveryEngineAnnouncing(t, time.Hour, "", func(t *testing.T, a *announcing) {
		silent, begun := a.client(t), a.client(t, "hel")
		first, second := a.session(), a.session()
		awaitTaken(t, begun)
		a.engine.Abort()
		for _, s := range []*announced{first, second} {
			if r := s.end(t); r != (relay.Result{Cause: relay.Shutdown}) {
				t.Errorf("result %+v", r)
			}
		}
		wantReset(t, silent)
		wantReset(t, begun)
		visit(t, a.address)
		if r := a.session().end(t); r != (relay.Result{Cause: relay.Shutdown}) {
			t.Errorf("result %+v of a client that came after Abort", r)
		}
	})
}

func TestClientsThatWaitForTheirPreambleLeaveNothing(t *testing.T) {
	for name := range engines { // not in parallel: descriptors are the process's
		t.Run(name, func(t *testing.T) {
			a := newAnnouncing(t, name, time.Second, "")
			before, goroutines := descriptors(t), runtime.NumGoroutine()
			const n = 300
			var waiting []*announced
			for range n {
				a.client(t)
				waiting = append(waiting, a.session())
			}
			if now := runtime.NumGoroutine(); name == "loop" && now > goroutines {
				t.Errorf("%d goroutines before, %d while clients wait", goroutines, now)
			}
			for _, s := range waiting {
				if r := s.end(t); !errors.Is(r.Err, relay.ErrPreambleLate) {
					t.Errorf("result %+v", r)
				}
			}
			if now := descriptors(t) - n; now > before { // the clients' own are still open
				t.Errorf("%d descriptors before, %d after", before, now)
			}
		})
	}
}

func TestResetsAndHalfClosesAfterAPreambleAreAsWithoutOne(t *testing.T) {
	onEveryEngineAnnouncing(t, time.Hour, "word\n", func(t *testing.T, a *announcing) {
		open := func() (client, backend *net.TCPConn, s *announced) {
			client, s = a.client(t, "hello\n"), a.session()
			backend = a.accept(t)
			wantBytes(t, backend, "word\n")
			return client, backend, s
		}
		client, backend, s := open()
		send(t, backend, 1000)
		receive(t, client, 1000)
		check(t, backend.CloseWrite())
		if n, err := drain(t, client); n != 0 || err != nil {
			t.Errorf("the client read %d bytes and %v, want the end", n, err)
		}
		send(t, client, 1<<20)
		check(t, client.CloseWrite())
		if n, err := drain(t, backend); n != 1<<20 || err != nil {
			t.Errorf("the backend read %d bytes and %v", n, err)
		}
		if r := s.end(t); r != (relay.Result{Up: 1 << 20, Down: 1000, Cause: relay.BackendClosed}) {
			t.Errorf("result %+v", r)
		}

		client, backend, s = open()
		send(t, backend, 1000)
		receive(t, client, 1000)
		check(t, backend.SetLinger(0))
		check(t, backend.Close())
		wantReset(t, client)
		if r := s.end(t); r.Cause != relay.BackendReset || r.Up != 0 {
			t.Errorf("result %+v", r)
		}

		client, backend, s = open()
		check(t, client.SetLinger(0))
		check(t, client.Close())
		wantReset(t, backend)
		if r := s.end(t); r.Cause != relay.ClientReset || r.Up != 0 {
			t.Errorf("result %+v", r)
		}
	})
}
