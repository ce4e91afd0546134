package relay_test

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
	"github.com/kube-splice/kube-splice/proxy/relay"
)

// abort closes with RST.
func abort(t testing.TB, c *net.TCPConn) {
	t.Helper()
	check(t, c.SetLinger(0))
	check(t, c.Close())
}

func TestBackendResetReachesTheClientAfterItsData(t *testing.T) {
	onEveryEngine(t, relay.Limits{}, func(t *testing.T, p *pair) {
		send(t, p.client, 4)
		receive(t, p.backend, 4)
		send(t, p.backend, 10_000)
		waitSent(t, p.backend)
		abort(t, p.backend)
		n, err := drain(t, p.client)
		if n != 10_000 || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("client read %d bytes and %v, want 10000 and connection reset", n, err)
		}
		p.wantCause(t, relay.BackendReset)
	})
}

// What lies in our own send buffer when the reset arrives belongs to what was
// received, and a reset of our own would throw it away.
func TestResetWaitsForASlowReaderToTakeWhatWasReceived(t *testing.T) {
	const size = 150_000
	onEveryEngine(t, relay.Limits{}, func(t *testing.T, p *pair) {
		check(t, p.client.SetReadBuffer(4096))
		send(t, p.backend, size)
		waitSent(t, p.backend)
		abort(t, p.backend)
		time.Sleep(100 * time.Millisecond) // a slow reader, made slower by its small window
		if n, err := drain(t, p.client); n != size || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("client read %d bytes and %v, want %d and connection reset", n, err, size)
		}
	})
}

func TestClientResetReachesTheBackendAtOnce(t *testing.T) {
	onEveryEngine(t, relay.Limits{}, func(t *testing.T, p *pair) {
		send(t, p.client, 4)
		receive(t, p.backend, 4)
		abort(t, p.client)
		watch := lab.StartStopwatch()
		if _, err := drain(t, p.backend); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("backend read %v, want connection reset", err)
		}
		if took := watch.Elapsed(); took > time.Second {
			t.Errorf("the reset took %v", took)
		}
		p.wantCause(t, relay.ClientReset)
	})
}

// The kernel tells a reset to one system call only. When the direction that
// writes to the backend takes it, the direction that reads must not take the
// silence after it for a clean end.
func TestResetIsNotMistakenForAnEndWhenTheOtherDirectionTookIt(t *testing.T) {
	for name := range engines {
		t.Run(name, func(t *testing.T) {
			front := newFront(t, name, relay.Limits{}, nil)
			for range 300 {
				p := front.pair(t)
				// More than the backend's kernel takes, so that the engine has a
				// write to the backend in hand all the time.
				check(t, p.backend.SetReadBuffer(4096))
				check(t, p.client.SetWriteDeadline(time.Now().Add(10*time.Millisecond)))
				flood(p.client)
				send(t, p.backend, 10)
				waitSent(t, p.backend)
				abort(t, p.backend)
				if n, err := drain(t, p.client); n != 10 || !errors.Is(err, syscall.ECONNRESET) {
					t.Fatalf("client read %d bytes and %v, want 10 and connection reset", n, err)
				}
				p.wantCause(t, relay.BackendReset)
			}
		})
	}
}

// flood writes until it cannot.
func flood(c net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		if _, err := c.Write(buf); err != nil {
			return
		}
	}
}

func TestResetAfterHalfCloseIsStillAReset(t *testing.T) {
	onEveryEngine(t, relay.Limits{}, func(t *testing.T, p *pair) {
		check(t, p.client.CloseWrite())
		_, err := drain(t, p.backend)
		check(t, err)
		send(t, p.backend, 10)
		receive(t, p.client, 10)
		abort(t, p.backend)
		if _, err := drain(t, p.client); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("client read %v, want connection reset", err)
		}
		p.wantCause(t, relay.BackendReset)
	})
}

// Nobody reads any more from a side whose FIN was read.
func TestResetAfterItsOwnHalfCloseIsStillAReset(t *testing.T) {
	onEveryEngine(t, relay.Limits{}, func(t *testing.T, p *pair) {
		send(t, p.client, 1)
		check(t, p.client.CloseWrite())
		_, err := drain(t, p.backend)
		check(t, err)
		abort(t, p.client)
		p.wantCause(t, relay.ClientReset)
	})
}

// Nobody reads from the side that resets while the other one takes nothing.
func TestResetIsNoticedWhileTheOtherSideHangs(t *testing.T) {
	sides := map[string]struct {
		cause  relay.Cause
		resets func(p *pair) *net.TCPConn
	}{
		"client":  {relay.ClientReset, func(p *pair) *net.TCPConn { return p.client }},
		"backend": {relay.BackendReset, func(p *pair) *net.TCPConn { return p.backend }},
	}
	for name, c := range sides {
		t.Run(name, func(t *testing.T) {
			onEveryEngine(t, relay.Limits{}, func(t *testing.T, p *pair) {
				resets := c.resets(p)
				check(t, resets.SetWriteDeadline(time.Now().Add(500*time.Millisecond)))
				flood(resets)
				abort(t, resets)
				p.wantCause(t, c.cause)
			})
		})
	}
}

func TestEndOfContextResetsBothSides(t *testing.T) {
	onEveryEngine(t, relay.Limits{}, func(t *testing.T, p *pair) {
		send(t, p.client, 3)
		receive(t, p.backend, 3)
		p.stop()
		p.wantCause(t, relay.Shutdown)
		for side, c := range map[string]*net.TCPConn{"client": p.client, "backend": p.backend} {
			if _, err := drain(t, c); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s read %v, want connection reset", side, err)
			}
		}
	})
}

// waitSent waits until the peer's kernel has everything written to c.
func waitSent(t testing.TB, c *net.TCPConn) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		if pending(t, c) == 0 {
			return
		}
	}
	t.Fatal("data stays unacknowledged")
}

// pending returns how many bytes written to c, FIN included, the peer's kernel has
// not acknowledged.
func pending(t testing.TB, c *net.TCPConn) int {
	t.Helper()
	raw, err := c.SyscallConn()
	check(t, err)
	left := 0
	check(t, raw.Control(func(fd uintptr) { left = unsent(fd) }))
	return left
}
