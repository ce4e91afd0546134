package relay_test

import (
	"errors"
	"math"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/proxy/relay"
)

// planned is a Handler whose sessions dial what next says, one call after the other.
type planned struct {
	next      func(call int, failed error) (relay.Dial, error)
	sessions  chan *plan
	reserved  atomic.Int64
	most      int64 // how many Reserve admits at once
	short     chan error
	connected atomic.Int64
	limits    relay.Limits
}

// plan is a Session of planned.
type plan struct {
	handler *planned
	calls   int
	failed  []error // what Next was told
	result  chan relay.Result
}

func newPlanned(next func(call int, failed error) (relay.Dial, error)) *planned {
	h := &planned{next: next, sessions: make(chan *plan, 10_000), short: make(chan error, 1000), most: math.MaxInt64}
	return h
}

func (h *planned) Reserve() bool {
	if h.reserved.Add(1) > h.most {
		h.reserved.Add(-1)
		return false
	}
	return true
}

func (h *planned) Release() { h.reserved.Add(-1) }
func (h *planned) Short(err error) {
	select {
	case h.short <- err:
	default:
	}
}
func (h *planned) TurnedAway(netip.AddrPort, error) {}
func (h *planned) Arrive(int, netip.AddrPort) relay.Session {
	s := &plan{handler: h, result: make(chan relay.Result, 1)}
	h.sessions <- s
	return s
}

func (s *plan) Next(failed error) (relay.Dial, error) {
	s.failed = append(s.failed, failed)
	s.calls++
	return s.handler.next(s.calls, failed)
}

func (s *plan) Prepare(int) error { return nil }
func (s *plan) Connected() relay.Limits {
	s.handler.connected.Add(1)
	return s.handler.limits
}

func (s *plan) Done(r relay.Result) {
	s.handler.Release()
	s.result <- r
}

// serve has an engine serve a planned Handler until the test ends, and returns where.
func (h *planned) serve(t testing.TB, e relay.Engine) (string, relay.Listener) {
	t.Helper()
	ln := listen(t)
	l, err := e.Listen(ln, h)
	check(t, err)
	return ln.Addr().String(), l
}

// onEveryEngineWith runs a test on each engine with a planned Handler. Sessions that are
// left are aborted.
func onEveryEngineWith(t *testing.T, next func(call int, failed error) (relay.Dial, error), test func(t *testing.T, h *planned, client net.Conn, e relay.Engine)) {
	t.Parallel()
	for name, start := range engines {
		t.Run(name, func(t *testing.T) {
			e, h := start(), newPlanned(next)
			address, l := h.serve(t, e)
			client, err := net.Dial("tcp", address)
			check(t, err)
			test(t, h, client, e)
			_ = client.Close()
			l.Close()
			e.Close()
			if n := h.reserved.Load(); n != 0 {
				t.Errorf("%d sessions are still counted after the engine's end", n)
			}
		})
	}
}

// end waits for the next session and its result.
func (h *planned) end(t testing.TB) (*plan, relay.Result) {
	t.Helper()
	s := <-h.sessions
	return s, s.end(t)
}

func (s *plan) end(t testing.TB) relay.Result {
	t.Helper()
	select {
	case r := <-s.result:
		return r
	case <-time.After(20 * time.Second):
		t.Fatal("the session did not end")
		panic("unreachable")
	}
}

// nobody returns an address of loopback that refuses.
func nobody(t testing.TB) netip.AddrPort {
	t.Helper()
	ln := listen(t)
	check(t, ln.Close())
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// silent returns an address of loopback that does not answer: its listener's queue is
// full, so the kernel drops a SYN.
func silent(t testing.TB) netip.AddrPort {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	check(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	check(t, unix.Listen(fd, 0))
	sa, err := unix.Getsockname(fd)
	check(t, err)
	address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(sa.(*unix.SockaddrInet4).Port))
	for {
		c, err := net.DialTimeout("tcp", address.String(), 300*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { _ = c.Close() })
	}
}

// visit connects a client that is to be reset, and waits for that.
func visit(t testing.TB, address string) {
	t.Helper()
	client, err := net.Dial("tcp", address)
	if errors.Is(err, syscall.ECONNRESET) {
		return // before Dial has looked
	}
	check(t, err)
	wantReset(t, client)
	check(t, client.Close())
}

// wantReset reads from a client that is to find a reset and no byte.
func wantReset(t testing.TB, client net.Conn) {
	t.Helper()
	if n, err := drain(t, client); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client read %d bytes and %v, want connection reset", n, err)
	}
}
