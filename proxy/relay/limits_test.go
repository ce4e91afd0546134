package relay_test

import (
	"errors"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/proxy/relay"
)

// Many pairs come to their limits while others of the same engine are busy: each ends by
// its own limit, not before it, and no busy one is cut.
func TestLimitsHoldWhileTheEngineIsBusy(t *testing.T) {
	const limit, each = 2 * time.Second, 20
	for name := range engines {
		t.Run(name, func(t *testing.T) {
			front := newFront(t, name, relay.Limits{Idle: 2 * limit, HalfClosed: limit}, nil)
			busy, ended := front.pair(t), make(chan struct{})
			var load sync.WaitGroup
			load.Go(func() { flood(busy.client) })
			load.Go(func() { _, _ = drain(t, busy.backend) })
			var waiting sync.WaitGroup
			for i := range 3 * each {
				p := front.pair(t)
				send(t, p.client, 1)
				receive(t, p.backend, 1)
				want, least := relay.Idle, 2*limit
				began := time.Now()
				switch i % 3 {
				case 0:
					check(t, p.client.CloseWrite())
					want, least = relay.HalfClosed, limit
				case 1:
					check(t, p.backend.CloseWrite())
					want, least = relay.HalfClosed, limit
				}
				waiting.Go(func() {
					if r := <-p.result; r.Cause != want {
						t.Errorf("a pair ended by cause %d, want %d", r.Cause, want)
					}
					if took := time.Since(began); took < least {
						t.Errorf("a pair was ended after %v, before its limit %v", took, least)
					}
				})
			}
			go func() { waiting.Wait(); close(ended) }()
			select {
			case <-ended:
			case <-time.After(30 * time.Second):
				t.Fatal("pairs outlive their limits")
			}
			select {
			case r := <-busy.result:
				t.Errorf("the busy pair ended: %+v", r)
			default:
			}
			front.engine.Abort()
			load.Wait()
		})
	}
}

// A peer that is cut off acknowledges nothing: a filter of its socket drops all that comes.
func TestAPeerThatLeavesDataUnansweredCountsAsReset(t *testing.T) {
	const limit = time.Second
	onEveryEngine(t, relay.Limits{Unanswered: limit}, func(t *testing.T, p *pair) {
		raw, err := p.client.SyscallConn()
		check(t, err)
		nothing := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
		check(t, raw.Control(func(fd uintptr) {
			err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing})
		}))
		check(t, err)
		began := time.Now()
		send(t, p.backend, 10)
		if r := p.end(t); r.Cause != relay.ClientReset || !errors.Is(r.Err, unix.ETIMEDOUT) {
			t.Errorf("result %+v, want the client's reset by a timeout", r)
		}
		if took := time.Since(began); took < limit*9/10 { // the kernel counts jiffies
			t.Errorf("given up after %v, before its limit %v", took, limit)
		}
		if _, err := drain(t, p.backend); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("backend read %v, want connection reset", err)
		}
	})
}

// A live reader that takes nothing answers the probes of its closed window.
func TestAReaderThatHangsIsNotUnanswered(t *testing.T) {
	const limit = 500 * time.Millisecond
	onEveryEngine(t, relay.Limits{Unanswered: limit}, func(t *testing.T, p *pair) {
		check(t, p.backend.SetWriteDeadline(time.Now().Add(time.Second)))
		flood(p.backend)
		select {
		case r := <-p.result:
			t.Fatalf("the pair of a live reader ended: %+v", r)
		case <-time.After(8 * limit): // longer than it takes to look
		}
		check(t, p.backend.CloseWrite())
		if _, err := drain(t, p.client); err != nil {
			t.Errorf("the reader found %v in the end", err)
		}
	})
}

// A limit may be as long as a Duration can be.
func TestTheLongestLimitIsNeverReached(t *testing.T) {
	onEveryEngine(t, relay.Limits{Idle: math.MaxInt64, HalfClosed: math.MaxInt64}, func(t *testing.T, p *pair) {
		exchange(t, p, 1)
		check(t, p.client.CloseWrite())
		if _, err := drain(t, p.backend); err != nil {
			t.Errorf("the backend read %v, want the end", err)
		}
		send(t, p.backend, 1)
		receive(t, p.client, 1)
		check(t, p.backend.Close())
		p.wantCause(t, relay.ClientClosed)
	})
}

// Nor does the shortest keep an engine busy: it is reached at once, also while the backend
// leaves what the client has sent unread.
func TestTheShortestLimitIsReached(t *testing.T) {
	t.Parallel()
	backend := listen(t)
	defer backend.Close()
	for name, start := range engines {
		t.Run(name, func(t *testing.T) {
			var sent atomic.Bool
			e, h := start(), newPlanned(func(int, error) (relay.Dial, error) {
				if !sent.Load() {
					return relay.Dial{Wait: time.Millisecond}, nil
				}
				return relay.Dial{Backend: backend.Addr().(*net.TCPAddr).AddrPort(), Limit: 10 * time.Second}, nil
			})
			h.limits.Idle = 1
			address, l := h.serve(t, e)
			client, err := net.Dial("tcp", address)
			check(t, err)
			defer client.Close()
			check(t, client.SetWriteDeadline(time.Now().Add(200*time.Millisecond)))
			flood(client)
			sent.Store(true)
			if _, r := h.end(t); r.Cause != relay.Idle {
				t.Errorf("the pair ended by cause %d (%v), want Idle", r.Cause, r.Err)
			}
			l.Close()
			e.Close()
		})
	}
}
