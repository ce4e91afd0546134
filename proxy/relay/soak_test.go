package relay_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/proxy/relay"
)

// soakFor is how long the soak lasts, a duration; `make soak` sets it.
const soakFor = "KUBE_SPLICE_SOAK"

// Everything at once, for as long as is asked: bulk both ways, small requests, resets,
// half-closes, readers that are slow or hang, backends that come and go. What arrives is
// what was sent, and nothing is left in the end.
func TestSoak(t *testing.T) {
	length := 5 * time.Second
	if asked := os.Getenv(soakFor); asked != "" {
		var err error
		length, err = time.ParseDuration(asked)
		check(t, err)
	}
	for _, name := range []string{"loop", "copy"} {
		t.Run(name, func(t *testing.T) { soak(t, name, length) })
	}
}

// soaking is a run of the soak.
type soaking struct {
	*testing.T
	address string
	until   time.Time
	backend atomic.Pointer[net.TCPListener] // replaced now and then
	clients [6]atomic.Int64                 // how many did what
	refused atomic.Int64                    // dials
}

func soak(t *testing.T, engine string, length time.Duration) {
	refuses := nobody(t)
	before := rest(t)
	s := &soaking{T: t, until: time.Now().Add(length)}
	var clients, backends sync.WaitGroup
	lines := []*net.TCPListener{s.come(&backends)}
	var dials atomic.Int64
	h := newPlanned(func(call int, failed error) (relay.Dial, error) {
		switch {
		case failed != nil:
			s.refused.Add(1)
			return relay.Dial{Wait: 5 * time.Millisecond}, nil
		case call == 1 && dials.Add(1)%10 == 0:
			return relay.Dial{Backend: refuses, Limit: 10 * time.Second}, nil
		}
		return relay.Dial{Backend: s.backend.Load().Addr().(*net.TCPAddr).AddrPort(), Limit: 10 * time.Second}, nil
	})
	h.limits = relay.Limits{HalfClosed: time.Minute, Idle: time.Minute, Unanswered: time.Minute}
	e := engines[engine]()
	address, l := h.serve(t, e)
	s.address = address
	for i := range 24 {
		clients.Go(func() { s.client(rand.New(rand.NewPCG(uint64(i), 1))) })
	}
	go forget(h)
	for time.Now().Before(s.until) {
		time.Sleep(300 * time.Millisecond)
		lines = append(lines, s.come(&backends))
		if len(lines) > 10 { // nobody dials that one any more
			_ = lines[0].Close()
			lines = lines[1:]
		}
	}
	clients.Wait()
	l.Close()
	within(t, 20*time.Second, "connections end", func() bool { return h.reserved.Load() == 0 })
	close(h.sessions)
	for _, ln := range lines {
		_ = ln.Close()
	}
	backends.Wait()
	e.Close()
	t.Logf("clients by kind: %v; %d dials were refused", s.counts(), s.refused.Load())
	if slices.Min(s.counts()) == 0 || s.refused.Load() == 0 {
		t.Error("something never happened")
	}
	within(t, 20*time.Second, "descriptors, goroutines and heap are as before", func() bool { return rest(t).within(before) })
	t.Logf("before %+v, after %+v", before, rest(t))
}

func (s *soaking) counts() (n []int64) {
	for i := range s.clients {
		n = append(n, s.clients[i].Load())
	}
	return n
}

// forget takes sessions that nobody asks for.
func forget(h *planned) {
	for range h.sessions {
	}
}

// atRest is what a process holds.
type atRest struct {
	descriptors, goroutines int
	heap                    uint64
}

func rest(t testing.TB) atRest {
	runtime.GC()
	runtime.GC() // empties the runtime's pool of pipes
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return atRest{descriptors(t), runtime.NumGoroutine(), m.HeapAlloc}
}

// within allows the heap what the test binary itself has kept since.
func (r atRest) within(before atRest) bool {
	return r.descriptors <= before.descriptors && r.goroutines <= before.goroutines && r.heap <= before.heap+2<<20
}

// come has a new backend take the place of the one before.
func (s *soaking) come(all *sync.WaitGroup) *net.TCPListener {
	ln := listen(s)
	s.backend.Store(ln)
	all.Go(func() {
		for {
			c, err := ln.AcceptTCP()
			if err != nil {
				return
			}
			all.Go(func() { s.serve(c) })
		}
	})
	return ln
}

// A client's first byte says what is to happen.
const (
	bulkUp    = iota // the client sends, half-closes, and gets a hash
	bulkBoth         // what it sends comes back
	requests         // small ones, answered one by one
	slow             // it reads a long answer little by little
	resets           // it resets in the middle
	resetByUs        // the backend does
)

// slowly is how many bytes a slow reader gets, more than buffers hold.
const slowly = 8 << 20

// serve is a backend's side of a connection.
func (s *soaking) serve(c *net.TCPConn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	kind := make([]byte, 1)
	if _, err := io.ReadFull(c, kind); err != nil {
		return // a client that was gone before
	}
	switch kind[0] {
	case bulkUp:
		n, err := io.Copy(io.Discard, &checked{r: c, want: rand.NewChaCha8([32]byte{bulkUp})})
		if err != nil {
			s.Errorf("bulk up: %d bytes: %v", n, err)
		}
		_, _ = fmt.Fprintf(c, "%d", n)
	case slow:
		random := rand.NewChaCha8([32]byte{slow})
		_, _ = io.Copy(c, io.LimitReader(random, slowly))
	case resets:
		_, _ = io.Copy(c, struct{ io.Reader }{c})
		_ = c.SetLinger(0)
	case resetByUs:
		_, _ = io.Copy(c, io.LimitReader(rand.NewChaCha8([32]byte{resetByUs}), 40_000))
		for deadline := time.Now().Add(10 * time.Second); pending(s, c) > 0 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		_ = c.SetLinger(0)
	default:
		_, _ = io.Copy(c, struct{ io.Reader }{c})
	}
}

// checked is a reader that checks what it reads.
type checked struct {
	r    io.Reader
	want *rand.ChaCha8
	n    int64
}

func (s *checked) Read(buf []byte) (int, error) {
	n, err := s.r.Read(buf)
	if err != nil && strings.HasSuffix(err.Error(), "not pollable") { // see drain
		time.Sleep(time.Millisecond)
		err = nil
	}
	want := make([]byte, n)
	_, _ = s.want.Read(want)
	if !bytes.Equal(buf[:n], want) {
		return n, fmt.Errorf("bytes %d to %d are not what was sent", s.n, s.n+int64(n))
	}
	s.n += int64(n)
	return n, err
}

// client comes again and again until the soak is over.
func (s *soaking) client(random *rand.Rand) {
	for time.Now().Before(s.until) && !s.Failed() {
		kind := byte(random.IntN(len(s.clients)))
		if err := s.visit(kind, random); err != nil {
			s.Errorf("client of kind %d: %v", kind, err)
		}
		s.clients[kind].Add(1)
	}
}

func (s *soaking) visit(kind byte, random *rand.Rand) error {
	conn, err := net.Dial("tcp", s.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	c, size := conn.(*net.TCPConn), int64(random.IntN(4<<20))
	if random.IntN(2) == 0 {
		size = int64(random.IntN(64 << 10))
	}
	if err := errors.Join(c.SetDeadline(time.Now().Add(time.Minute)), write(c, []byte{kind})); err != nil {
		return err
	}
	in, out := rand.NewChaCha8([32]byte{kind}), rand.NewChaCha8([32]byte{kind})
	switch kind {
	case bulkUp:
		if _, err := io.Copy(c, io.LimitReader(out, size)); err != nil {
			return err
		}
		_ = c.CloseWrite()
		got, err := io.ReadAll(c)
		if err == nil && string(got) != fmt.Sprint(size) {
			err = fmt.Errorf("%s bytes of %d arrived", got, size)
		}
		return err
	case bulkBoth:
		go func() {
			_, _ = io.Copy(c, io.LimitReader(out, size))
			_ = c.CloseWrite()
		}()
		n, err := io.Copy(io.Discard, &checked{r: c, want: in})
		if err == nil && n != size {
			err = fmt.Errorf("%d bytes of %d came back", n, size)
		}
		return err
	case requests:
		back := &checked{r: c, want: in}
		for range 1 + random.IntN(50) {
			request := make([]byte, 1+random.IntN(1000))
			_, _ = out.Read(request)
			if err := write(c, request); err != nil {
				return err
			}
			if _, err := io.ReadFull(back, request); err != nil {
				return err
			}
		}
		return nil
	case slow:
		back := &checked{r: c, want: in}
		for {
			if _, err := io.ReadFull(back, make([]byte, 200_000)); err != nil {
				break
			}
			time.Sleep(time.Duration(random.IntN(10)) * time.Millisecond)
		}
		if back.n != slowly {
			return fmt.Errorf("a slow reader got %d bytes", back.n)
		}
		return nil
	case resets:
		_ = c.SetDeadline(time.Now().Add(time.Duration(random.IntN(100)) * time.Millisecond))
		_, _ = io.Copy(c, io.LimitReader(out, 64<<20)) // more than goes, as it reads nothing
		return c.SetLinger(0)
	default: // resetByUs
		n, err := io.Copy(io.Discard, &checked{r: c, want: in})
		if n != 40_000 || !errors.Is(err, syscall.ECONNRESET) {
			return fmt.Errorf("read %d bytes and %w before the backend's reset", n, err)
		}
		return nil
	}
}

func write(c net.Conn, b []byte) error {
	_, err := c.Write(b)
	return err
}
