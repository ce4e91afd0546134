package relay_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/proxy/relay"
)

// FuzzEnginesAgree plays what a client and a backend do, step by step, to each engine, and
// compares what came of it. Each step awaits what it must lead to, so nearly all of the
// outcome is determined; what is not is said where it arises, and is -1, 0 or "" in outcome.
func FuzzEnginesAgree(f *testing.F) {
	for _, steps := range []string{
		"w9 W9 r9 R9 h5 w5 H5",                // a request, an answer, an end
		"t9 T9 t5 T2 C0",                      // bulk both ways
		"w9 h0 W9 r5 W8 x0",                   // reset after a half-close
		"W9 s0 t3 X0", "w9 W9 x0", "T9 w7 X0", // resets with something under way
		"f0 r3 x0", "F0 h0 R9 H0", "f0 F0 h0 H0", // neither reads
		"s0 S0 w9 W9 h0 H0", "s0 W9 H0 X0", // tiny windows
		"w9 u0 w3 W9 h0", "t9 u0 w9 H0", "T9 U0 W5 X0", // an urgent byte
		"w9 c0", "W9 C0 x0", "t9 h0 C0",
	} {
		f.Add([]byte(steps))
	}
	f.Fuzz(func(t *testing.T, steps []byte) {
		if len(steps) > 60 {
			return
		}
		want := play(t, "copy", steps)
		if got := play(t, "loop", steps); got != want {
			t.Errorf("after %q the loops say %+v, the copier %+v", steps, got, want)
		}
	})
}

// outcome is what determined a run, as far as it is.
type outcome struct {
	got      [2]int64  // bytes the client and the backend read
	end      [2]string // how their streams ended
	cause    relay.Cause
	up, down int64
}

// peer is the client or the backend of a run.
type peer struct {
	*net.TCPConn
	t           testing.TB
	other       *peer
	out, in     *rand.ChaCha8 // what it writes, and what it is to read
	sent, got   int64
	urgent      int64 // sent before its urgent byte; -1: it sent none
	small       bool  // its receive buffer
	flooded     bool
	fin, closed bool
	seen        bool // its FIN has reached other
	end         string
}

// play runs steps on an engine. A step is a letter, in capitals for the backend, and a size.
func play(t testing.TB, engine string, steps []byte) outcome {
	front := newFront(t, engine, relay.Limits{}, nil)
	pair := front.pair(t)
	a := &peer{TCPConn: pair.client, t: t, urgent: -1, out: rand.NewChaCha8([32]byte{1}), in: rand.NewChaCha8([32]byte{2})}
	b := &peer{TCPConn: pair.backend, t: t, urgent: -1, out: rand.NewChaCha8([32]byte{2}), in: rand.NewChaCha8([32]byte{1})}
	a.other, b.other = b, a
	a.write(1) // nothing is sure until the engine has reached the backend
	b.read(1)
	var first, reset *peer // the first to send FIN, who reset
	var surely bool        // first is known to the engine as the first
	for i := 0; i+1 < len(steps) && reset == nil && !(a.fin && b.fin); i++ {
		p, size := a, 1<<(2*(steps[i+1]&15))
		if steps[i]&32 == 0 {
			p = b
		}
		if !p.step(steps[i]|32, int64(size)) {
			continue
		}
		i++
		switch {
		case steps[i-1]|32 == 'x':
			reset = p
		case p.fin && first == nil:
			first = p
		case p.fin && p != first:
			surely = first.seen
		}
	}
	if reset != nil {
		return reset.wasReset(pair)
	}
	return finish(a, b, first, surely, pair)
}

// unread is what p may still read before the other writes on.
func (p *peer) unread() int64 { return p.other.sent - p.got }

// unreadMost is what either side may have written and not read, so that no write blocks.
const unreadMost = 48 << 10

// step does what a letter says and reports whether it means anything now.
func (p *peer) step(op byte, size int64) bool {
	if p.closed {
		return false
	}
	writes := !p.fin && !p.other.closed
	switch {
	case op == 'w' && writes:
		p.write(min(size, unreadMost-p.other.unread()))
	case op == 't' && writes && p.urgent < 0: // the other reads it at once
		n := min(size, 1<<20)
		if p.other.small {
			n = min(n, 8<<10)
		}
		all, done := p.other.unread()+n, make(chan struct{})
		go func() { defer close(done); p.write(n) }()
		p.other.read(all)
		<-done
	case op == 'f' && writes && p.urgent < 0 && !p.other.small: // until nothing goes any more
		p.flooded = true
		p.flood()
	case op == 'u' && writes && p.urgent < 0 && p.other.unread() <= unreadMost/2:
		p.urgent = p.sent
		urgent(p.t, p.TCPConn)
	case op == 'r':
		p.read(min(size, p.readable()))
	case op == 's' && p.unread() <= unreadMost:
		p.small = true
		check(p.t, p.SetReadBuffer(4096))
	case op == 'h' && !p.fin:
		p.halfClose()
	case op == 'c' && p.readable() == p.unread(): // with something unread it would be a reset
		p.read(p.unread())
		if !p.fin {
			p.halfClose()
		}
		p.closed = true
		check(p.t, p.Close())
	case op == 'x':
		if p.other.unread() <= unreadMost {
			waitSent(p.t, p.TCPConn)
		}
		abort(p.t, p.TCPConn)
	default:
		return false
	}
	return true
}

func (p *peer) write(n int64) {
	if n <= 0 {
		return
	}
	buf := make([]byte, n)
	_, _ = p.out.Read(buf)
	check(p.t, p.SetWriteDeadline(time.Now().Add(20*time.Second)))
	if _, err := p.Write(buf); err != nil {
		p.t.Errorf("write %d bytes: %v", n, err)
	}
	p.sent += n
}

func (p *peer) flood() {
	for {
		state, err := p.out.MarshalBinary()
		check(p.t, err)
		buf := make([]byte, 32<<10)
		_, _ = p.out.Read(buf)
		check(p.t, p.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
		n, err := p.Write(buf)
		p.sent += int64(n)
		if err != nil { // what was not written comes next
			check(p.t, p.out.UnmarshalBinary(state))
			_, _ = p.out.Read(buf[:n])
			return
		}
	}
}

// readable is how many bytes come without the other's further doing. The copier sends on
// what is behind an urgent byte only with the FIN.
func (p *peer) readable() int64 {
	if p.other.urgent >= 0 && !p.other.fin {
		return max(0, p.other.urgent-p.got)
	}
	return p.unread()
}

// read reads n bytes and checks that they are the other's.
func (p *peer) read(n int64) {
	if got, err := p.compare(io.LimitReader(p.TCPConn, n)); got != n {
		p.t.Errorf("read %d bytes of %d: %v", got, n, err)
	}
}

// drain reads to the end.
func (p *peer) drain() {
	_, err := p.compare(p.TCPConn)
	switch {
	case err == nil:
		p.end = "EOF"
	case errors.Is(err, syscall.ECONNRESET):
		p.end = "reset"
	default:
		p.end = err.Error()
	}
}

func (p *peer) compare(r io.Reader) (sum int64, err error) {
	check(p.t, p.SetReadDeadline(time.Now().Add(20*time.Second)))
	buf, want := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		_, _ = p.in.Read(want[:n])
		if !bytes.Equal(buf[:n], want[:n]) {
			p.t.Errorf("bytes %d to %d are not what was sent", p.got, p.got+int64(n))
		}
		sum, p.got = sum+int64(n), p.got+int64(n)
		switch {
		case err == io.EOF:
			return sum, nil
		case err != nil && !strings.HasSuffix(err.Error(), "not pollable"): // see drain
			return sum, err
		}
	}
}

// halfClose sends FIN. Unless something may be in its way, it awaits that the other has it.
func (p *peer) halfClose() {
	check(p.t, p.CloseWrite())
	p.fin = true
	unread := p.other.unread()
	if p.other.closed || unread > unreadMost || p.other.small && unread > 0 {
		return
	}
	const established = 1
	within(p.t, 10*time.Second, fmt.Sprintf("FIN behind %d bytes", unread), func() bool {
		state := tcpState(p.t, p.other.TCPConn)
		return state != established && (!p.other.fin || state != 4 && state != 5) // FIN_WAIT1, FIN_WAIT2
	})
	p.seen = true
}

// tcpState returns the state of a connection, numbered as in <netinet/tcp.h>.
func tcpState(t testing.TB, c *net.TCPConn) (state uint8) {
	t.Helper()
	raw, err := c.SyscallConn()
	check(t, err)
	check(t, raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		check(t, err)
		state = info.State
	}))
	return state
}

// wasReset ends a run in which p sent a reset.
func (p *peer) wasReset(pair *pair) outcome {
	q := p.other
	// What was received from p is delivered. Not all of it was, if p's flood was still with
	// p; and the copier loses with the reset what is behind an urgent byte.
	all := q.unread() <= unreadMost && (p.urgent < 0 || p.seen)
	o := outcome{got: [2]int64{-1, -1}, up: -1, down: -1}
	if !q.closed {
		q.drain()
		switch { // a FIN comes before a reset that comes later
		case q.end == "EOF" && p.fin, q.end == "reset" && !p.seen:
		default:
			p.t.Errorf("the other side of a reset read to the end: %q; FIN was sent: %v, was there: %v", q.end, p.fin, p.seen)
		}
		if all && q.got != p.sent {
			p.t.Errorf("the other side of a reset read %d bytes, want %d", q.got, p.sent)
		}
	}
	r := pair.end(p.t)
	want, moved, back := relay.ClientReset, r.Up, r.Down
	if p.TCPConn == pair.backend {
		want, moved, back = relay.BackendReset, r.Down, r.Up
	}
	if o.cause = r.Cause; o.cause != want {
		p.t.Errorf("the pair ended by cause %d (%v), want %d", r.Cause, r.Err, want)
	}
	if moved > p.sent || moved < q.got || all && moved != p.sent || back > q.sent || back < p.got {
		p.t.Errorf("counted %d and back %d; sent were %d and %d, read %d and %d", moved, back, p.sent, q.sent, q.got, p.got)
	}
	return o
}

// finish ends a run without a reset: everything arrives.
func finish(a, b, first *peer, surely bool, pair *pair) outcome {
	if first == nil {
		first = a
		a.halfClose()
	}
	last := first.other
	last.finish()
	if !last.fin {
		surely = true
		last.halfClose()
	}
	first.finish()
	r := pair.end(a.t)
	o := outcome{end: [2]string{a.end, b.end}}
	switch want := map[*peer]relay.Cause{a: relay.ClientClosed, b: relay.BackendClosed}; {
	case r.Cause != want[first] && (surely || r.Cause != want[last]) || r.Err != nil:
		a.t.Errorf("the pair ended by cause %d (%v), want %d", r.Cause, r.Err, want[first])
	case surely:
		o.cause = r.Cause
	}
	if r.Up != a.sent || r.Down != b.sent {
		a.t.Errorf("counted %d up and %d down, sent were %d and %d", r.Up, r.Down, a.sent, b.sent)
	}
	if !a.flooded && !b.flooded { // how much a flood is, buffers say
		o.got, o.up, o.down = [2]int64{a.got, b.got}, r.Up, r.Down
	}
	return o
}

// finish reads what the other has sent, and its FIN.
func (p *peer) finish() {
	if p.closed {
		return
	}
	if p.drain(); p.end != "EOF" || p.unread() != 0 {
		p.t.Errorf("read %d bytes of %d, and %q", p.got, p.other.sent, p.end)
	}
	p.other.seen = true
	if p.fin {
		check(p.t, p.Close())
		p.closed = true
	}
}
