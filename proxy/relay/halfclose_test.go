package relay_test

import (
	"io"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/proxy/relay"
)

func TestClientMayHalfCloseAndStillGetTheAnswer(t *testing.T) {
	onEveryEngine(t, relay.Limits{}, func(t *testing.T, p *pair) {
		send(t, p.client, 1)
		check(t, p.client.CloseWrite())
		if n, err := drain(t, p.backend); n != 1 || err != nil {
			t.Fatalf("backend read %d bytes to the end (%v), want 1", n, err)
		}
		go func() {
			_, _ = p.backend.Write(make([]byte, 1<<20))
			_ = p.backend.Close()
		}()
		if n, err := drain(t, p.client); n != 1<<20 || err != nil {
			t.Errorf("client read %d bytes (%v), want 1 MiB", n, err)
		}
		p.wantCause(t, relay.ClientClosed)
	})
}

func TestBackendMayHalfCloseFirstAndStillReceive(t *testing.T) {
	onEveryEngine(t, relay.Limits{}, func(t *testing.T, p *pair) {
		go func() {
			_, _ = p.backend.Write(make([]byte, 1<<20))
			_ = p.backend.CloseWrite()
		}()
		if n, err := drain(t, p.client); n != 1<<20 || err != nil {
			t.Fatalf("client read %d bytes (%v), want 1 MiB", n, err)
		}
		go func() {
			_, _ = p.client.Write(make([]byte, 1<<20))
			_ = p.client.Close()
		}()
		if n, err := drain(t, p.backend); n != 1<<20 || err != nil {
			t.Errorf("backend read %d bytes (%v), want 1 MiB", n, err)
		}
		r := p.end(t)
		if r.Cause != relay.BackendClosed || r.Up != 1<<20 || r.Down != 1<<20 || r.Err != nil {
			t.Errorf("result %+v, want backend closed, 1 MiB both ways", r)
		}
	})
}

func TestHalfClosedPairWithoutTrafficIsEnded(t *testing.T) {
	limit := 400 * time.Millisecond
	onEveryEngine(t, relay.Limits{HalfClosed: limit}, func(t *testing.T, p *pair) {
		send(t, p.client, 1)
		check(t, p.client.CloseWrite())
		started := time.Now()
		p.wantCause(t, relay.HalfClosed)
		if took := time.Since(started); took < limit {
			t.Errorf("ended after %v, before its limit %v", took, limit)
		}
	})
}

// The FIN waits behind data that the backend never takes.
func TestPairOfAClientThatHasGoneDoesNotOutliveItByAHangingBackend(t *testing.T) {
	onEveryEngine(t, relay.Limits{HalfClosed: 2 * time.Second}, func(t *testing.T, p *pair) {
		check(t, p.client.SetWriteDeadline(time.Now().Add(500*time.Millisecond)))
		flood(p.client)
		check(t, p.client.CloseWrite())
		for pending(t, p.client) > 0 { // until the FIN is with us
			receive(t, p.backend, 64<<10)
			time.Sleep(5 * time.Millisecond) // what follows has time to move up; the last of it is to stay
		}
		p.wantCause(t, relay.HalfClosed)
	})
}

func TestIdleLimitHoldsForHalfClosedPairsToo(t *testing.T) {
	for name, limits := range map[string]relay.Limits{
		"without a half-closed limit":  {Idle: 300 * time.Millisecond},
		"with a longer one":            {Idle: 300 * time.Millisecond, HalfClosed: time.Hour},
		"with a shorter one, which is": {Idle: time.Hour, HalfClosed: 300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			want := relay.Idle
			if limits.Idle == time.Hour {
				want = relay.HalfClosed
			}
			onEveryEngine(t, limits, func(t *testing.T, p *pair) {
				check(t, p.client.CloseWrite())
				p.wantCause(t, want)
			})
		})
	}
}

func TestHalfClosedPairLivesWhileBytesMove(t *testing.T) {
	limit := 2 * time.Second
	onEveryEngine(t, relay.Limits{HalfClosed: limit}, func(t *testing.T, p *pair) {
		check(t, p.client.CloseWrite())
		_, err := drain(t, p.backend)
		check(t, err)
		go trickle(p.backend, limit/8, 12)
		if n, err := drain(t, p.client); n != 12 || err != nil {
			t.Errorf("client read %d of 12 trickled bytes (%v)", n, err)
		}
	})
}

// trickle writes n bytes, one a pause, and closes.
func trickle(c io.WriteCloser, pause time.Duration, n int) {
	for range n {
		time.Sleep(pause)
		_, _ = c.Write([]byte{1})
	}
	_ = c.Close()
}

func TestOpenPairIsNotTouchedByTheHalfClosedLimit(t *testing.T) {
	limit := 50 * time.Millisecond
	onEveryEngine(t, relay.Limits{HalfClosed: limit}, func(t *testing.T, p *pair) {
		select {
		case r := <-p.result:
			t.Fatalf("an open idle pair was ended: %+v", r)
		case <-time.After(10 * limit):
		}
		send(t, p.client, 5)
		receive(t, p.backend, 5)
	})
}

func TestIdleLimitEndsAnOpenPairOnlyWhenNothingMoves(t *testing.T) {
	limit := 2 * time.Second
	onEveryEngine(t, relay.Limits{Idle: limit}, func(t *testing.T, p *pair) {
		for range 12 {
			time.Sleep(limit / 8)
			send(t, p.client, 1)
			receive(t, p.backend, 1)
		}
		p.wantCause(t, relay.Idle)
		if _, err := drain(t, p.client); err == nil {
			t.Error("the client of an ended idle pair saw a clean end")
		}
	})
}

// A byte that a slow reader takes from our send buffer moves, whoever wrote it when.
func TestIdleLimitCountsFromTheLastByteThatAReaderTook(t *testing.T) {
	const limit, size = 2 * time.Second, 64 << 10
	onEveryEngine(t, relay.Limits{Idle: limit}, func(t *testing.T, p *pair) {
		check(t, p.client.SetReadBuffer(4096))
		send(t, p.backend, size)
		receive(t, p.client, 1)
		time.Sleep(limit * 8 / 10)
		receive(t, p.client, size-1)
		taken := time.Now()
		p.wantCause(t, relay.Idle)
		if after := time.Since(taken); after < limit*9/10 {
			t.Errorf("ended %v after the last byte was taken, before its limit %v", after, limit)
		}
	})
}
