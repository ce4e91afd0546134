package relay_test

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/proxy/relay"
)

// newLoops starts loops, which the caller ends.
func newLoops(t testing.TB, n int) *relay.Loops {
	t.Helper()
	e, err := relay.NewLoops(n)
	check(t, err)
	return e
}

// What happens while a loop is busy comes to it at once. The first of these events closes
// a pair's sockets, the second gives their numbers to a client and its dial, and the third was
// for the old owner: it does not answer that dial.
func TestAnEventForAClosedDescriptorIsNotItsNextOwners(t *testing.T) {
	e, hangs, backend := newLoops(t, 1), silent(t), listen(t)
	held, hold := make(chan struct{}), make(chan struct{})
	none := errors.New("none is left")
	var established atomic.Bool
	h := newPlanned(func(call int, failed error) (relay.Dial, error) {
		switch {
		case call == 1 && !established.Load():
			return relay.Dial{Backend: backend.Addr().(*net.TCPAddr).AddrPort(), Limit: 10 * time.Second}, nil
		case call == 1:
			return relay.Dial{Backend: hangs, Limit: 300 * time.Millisecond}, nil
		}
		return relay.Dial{}, none
	})
	holder := newPlanned(func(int, error) (relay.Dial, error) {
		close(held)
		<-hold
		return relay.Dial{Wait: time.Hour}, nil // and keeps its socket's number
	})
	address, l := h.serve(t, e)
	blocker, lb := holder.serve(t, e)
	t.Cleanup(func() { l.Close(); lb.Close(); e.Close() })

	client, err := net.Dial("tcp", address)
	check(t, err)
	accepted, err := backend.AcceptTCP()
	check(t, err)
	check(t, backend.Close())
	send(t, client, 1)
	receive(t, accepted, 1)
	first := <-h.sessions
	established.Store(true)

	block, err := net.Dial("tcp", blocker)
	check(t, err)
	<-held
	abort(t, client.(*net.TCPConn))
	next, err := net.Dial("tcp", address)
	check(t, err)
	send(t, accepted, 1)
	close(hold)

	first.end(t)
	second, _ := h.end(t)
	if n := h.connected.Load(); n != 1 {
		t.Error("a backend that never answered counts as connected")
	}
	if len(second.failed) != 2 || !errors.Is(second.failed[1], relay.ErrNoAnswer) {
		t.Errorf("Next was told %v, want %v", second.failed, relay.ErrNoAnswer)
	}
	for _, c := range []net.Conn{next, accepted, block} {
		check(t, c.Close())
	}
}

func TestOneHotListenerIsServedByAllLoops(t *testing.T) {
	for _, n := range []int{2, 4} {
		e, backend := newLoops(t, n), echo(t)
		h := newPlanned(func(int, error) (relay.Dial, error) {
			return relay.Dial{Backend: backend, Limit: 10 * time.Second}, nil
		})
		address, l := h.serve(t, e)
		t.Cleanup(func() { l.Close(); e.Close() })

		const stay = 1000
		var clients []net.Conn
		for range stay {
			c, err := net.Dial("tcp", address)
			check(t, err)
			t.Cleanup(func() { _ = c.Close() })
			send(t, c, 1)
			clients = append(clients, c)
		}
		for _, c := range clients {
			receive(t, c, 1)
		}
		wantSpread(t, e, stay)

		// As many come and go, while one in ten of those that stay leaves.
		for i := range stay {
			c, err := net.Dial("tcp", address)
			check(t, err)
			send(t, c, 1)
			receive(t, c, 1)
			check(t, c.Close())
			if i < stay/10 {
				check(t, clients[i].Close())
			}
		}
		within(t, 5*time.Second, "connections end", func() bool { return sum(e.Connections()) == stay*9/10 })
		wantSpread(t, e, stay*9/10)
	}
}

func sum(counts []int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// wantSpread checks that no loop has more than an eighth more than another: the one that
// accepts keeps so many to itself rather than wake another.
func wantSpread(t testing.TB, e *relay.Loops, all int) {
	t.Helper()
	counts := e.Connections()
	if n := sum(counts); n != all {
		t.Errorf("%d connections on the loops, want %d", n, all)
	}
	if least, most := slices.Min(counts), slices.Max(counts); most-least > 4+most/8 {
		t.Errorf("%d connections are spread as %v", all, counts)
	}
}

// While a loop is held, bulk data piles up and then a client comes. The client's turn comes
// when a bounded part of that has passed, not all of it.
func TestBulkDataWaitsForOthersAfterItsShare(t *testing.T) {
	e, none := newLoops(t, 1), errors.New("none")
	front := newFrontOf(t, e, relay.Limits{}, nil)
	bulk := front.pair(t)
	check(t, bulk.client.SetReadBuffer(8<<20))
	check(t, bulk.backend.SetWriteBuffer(8<<20))
	go func() { _, _ = io.Copy(io.Discard, struct{ io.Reader }{bulk.client}) }()
	send(t, bulk.backend, 64<<20) // the kernel grows its buffers
	waitSent(t, bulk.backend)

	var passed atomic.Int64
	h := newPlanned(func(int, error) (relay.Dial, error) {
		passed.Store(received(t, bulk.client))
		return relay.Dial{}, none
	})
	held, hold := make(chan struct{}), make(chan struct{})
	holder := newPlanned(func(int, error) (relay.Dial, error) {
		close(held)
		<-hold
		return relay.Dial{}, none
	})
	address, l := h.serve(t, e)
	blocker, lb := holder.serve(t, e)
	var visits sync.WaitGroup
	visits.Go(func() { visit(t, blocker) })
	<-held
	check(t, bulk.backend.SetWriteDeadline(time.Now().Add(300*time.Millisecond)))
	flood(bulk.backend)
	before := received(t, bulk.client)
	stuck := pending(t, bulk.backend)
	visits.Go(func() { visit(t, address) })
	within(t, 10*time.Second, "the client is in the listener's queue", func() bool { return waits(t, l) })
	close(hold)
	_, _ = h.end(t)
	share := passed.Load() - before
	t.Logf("%d KiB passed before the client's turn; %d more waited with the backend alone", share>>10, stuck)
	if share == 0 || share > 3<<20 { // of two turns, and a little
		t.Errorf("%d bytes passed before the client's turn, want some, and two turns' worth at most", share)
	}
	visits.Wait()
	l.Close()
	lb.Close()
}

// received returns how many bytes have come to a socket.
func received(t testing.TB, c *net.TCPConn) (n int64) {
	raw, err := c.SyscallConn()
	check(t, err)
	check(t, raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		check(t, err)
		n = int64(info.Bytes_received)
	}))
	return n
}

// waits says whether a client waits to be accepted.
func waits(t testing.TB, l relay.Listener) (is bool) {
	check(t, l.Control(func(fd int) error {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		is = err == nil && info.Unacked > 0 // of a listener: the length of its queue
		return err
	}))
	return is
}
