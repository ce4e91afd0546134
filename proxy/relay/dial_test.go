package relay_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/lab"
	"github.com/kube-splice/kube-splice/proxy/relay"
)

func TestARefusedDialLeadsToTheNextBackend(t *testing.T) {
	refuses, backend := nobody(t), echo(t)
	onEveryEngineWith(t, func(call int, failed error) (relay.Dial, error) {
		if call < 3 {
			return relay.Dial{Backend: refuses, Limit: 10 * time.Second}, nil
		}
		return relay.Dial{Backend: backend, Limit: 10 * time.Second}, nil
	}, func(t *testing.T, h *planned, client net.Conn, _ relay.Engine) {
		send(t, client, 10)
		receive(t, client, 10)
		check(t, client.(*net.TCPConn).CloseWrite())
		s, r := h.end(t)
		if len(s.failed) != 3 || s.failed[0] != nil || !errors.Is(s.failed[1], syscall.ECONNREFUSED) || !errors.Is(s.failed[2], syscall.ECONNREFUSED) {
			t.Errorf("Next was told %v", s.failed)
		}
		if r != (relay.Result{Up: 10, Down: 10, Cause: relay.ClientClosed}) {
			t.Errorf("result %+v", r)
		}
	})
}

func TestABackendThatDoesNotAnswerIsGivenUpAfterItsLimit(t *testing.T) {
	const limit = 300 * time.Millisecond
	hangs, none := silent(t), errors.New("none is left")
	onEveryEngineWith(t, func(call int, failed error) (relay.Dial, error) {
		if call == 1 {
			return relay.Dial{Backend: hangs, Limit: limit}, nil
		}
		return relay.Dial{}, none
	}, func(t *testing.T, h *planned, client net.Conn, _ relay.Engine) {
		began := time.Now()
		s, r := h.end(t)
		if took := time.Since(began); took < limit/2 { // the clock began before us
			t.Errorf("given up after %v", took)
		}
		if len(s.failed) != 2 || !errors.Is(s.failed[1], relay.ErrNoAnswer) {
			t.Errorf("Next was told %v, want %v", s.failed, relay.ErrNoAnswer)
		}
		if r.Cause != relay.Unserved || !errors.Is(r.Err, none) {
			t.Errorf("result %+v, want Unserved because %v", r, none)
		}
		wantReset(t, client)
	})
}

func TestAWaitComesBetweenTwoDials(t *testing.T) {
	const wait = 200 * time.Millisecond
	refuses, backend := nobody(t), echo(t)
	var waited, came atomic.Int64 // on the wall clock
	onEveryEngineWith(t, func(call int, failed error) (relay.Dial, error) {
		switch call {
		case 1:
			return relay.Dial{Backend: refuses, Limit: time.Second}, nil
		case 2:
			waited.Store(time.Now().UnixNano())
			return relay.Dial{Wait: wait}, nil
		}
		came.Store(time.Now().UnixNano())
		return relay.Dial{Backend: backend, Limit: 10 * time.Second}, nil
	}, func(t *testing.T, h *planned, client net.Conn, _ relay.Engine) {
		send(t, client, 10)
		receive(t, client, 10)
		check(t, client.(*net.TCPConn).CloseWrite())
		s, _ := h.end(t)
		if len(s.failed) != 3 || s.failed[2] != nil {
			t.Errorf("Next was told %v, want nil after the wait", s.failed)
		}
		if took := time.Duration(came.Load() - waited.Load()); took < wait {
			t.Errorf("waited %v, want %v", took, wait)
		}
	})
}

// The engine has never watched a socket with a number as high as theirs.
func TestAClientWithoutABackendIsReset(t *testing.T) {
	none := errors.New("there is none")
	t.Parallel()
	for name, start := range engines {
		t.Run(name, func(t *testing.T) {
			e, h := start(), newPlanned(func(int, error) (relay.Dial, error) { return relay.Dial{}, none })
			address, l := h.serve(t, e)
			for range 300 {
				file, err := os.Open(os.DevNull)
				check(t, err)
				defer file.Close()
				visit(t, address)
				if _, r := h.end(t); r.Cause != relay.Unserved || !errors.Is(r.Err, none) {
					t.Fatalf("result %+v, want Unserved because %v", r, none)
				}
			}
			l.Close()
			e.Close()
		})
	}
}

// A socket that dials a port of the range from which the kernel takes its own may be given
// that very port, and meets itself.
func TestASocketThatMeetsItselfIsRefused(t *testing.T) {
	t.Parallel()
	for name, start := range engines {
		t.Run(name, func(t *testing.T) {
			// Other tests, on 127.0.0.1, cannot have taken it.
			e, itself := start(), netip.AddrPortFrom(netip.MustParseAddr("127.0.77.1"), nobody(t).Port())
			h := newPlanned(func(call int, failed error) (relay.Dial, error) {
				if call > 1 {
					return relay.Dial{}, failed
				}
				return relay.Dial{Backend: itself, Limit: 10 * time.Second}, nil
			})
			bound := &boundTo{Handler: h, address: itself}
			ln := listen(t)
			l, err := e.Listen(ln, bound)
			check(t, err)
			visit(t, ln.Addr().String())
			if _, r := h.end(t); r.Cause != relay.Unserved || bound.failed.Load() {
				t.Errorf("result %+v, want Unserved", r)
			}
			l.Close()
			e.Close()
		})
	}
}

// boundTo is a Handler whose sessions bind the backend's socket to an address.
type boundTo struct {
	relay.Handler
	address netip.AddrPort
	tries   atomic.Int32
	failed  atomic.Bool
}

type boundSession struct {
	relay.Session
	handler *boundTo
}

func (b *boundTo) Arrive(fd int, client netip.AddrPort) relay.Session {
	return &boundSession{b.Handler.Arrive(fd, client), b}
}

func (s *boundSession) Prepare(fd int) error {
	err := unix.Bind(fd, &unix.SockaddrInet4{Addr: s.handler.address.Addr().As4(), Port: int(s.handler.address.Port())})
	if s.handler.tries.Add(1) == 1 && err != nil { // a copier tries again, with a socket of its own
		s.handler.failed.Store(true)
	}
	return err
}

func TestAbortResetsAClientWhoseBackendIsDialled(t *testing.T) {
	hangs := silent(t)
	onEveryEngineWith(t, func(int, error) (relay.Dial, error) {
		return relay.Dial{Backend: hangs, Limit: time.Hour}, nil
	}, wantAbort)
}

func TestAbortResetsAClientThatWaitsForABackend(t *testing.T) {
	onEveryEngineWith(t, func(int, error) (relay.Dial, error) {
		return relay.Dial{Wait: time.Hour}, nil
	}, wantAbort)
}

func wantAbort(t *testing.T, h *planned, client net.Conn, e relay.Engine) {
	s := <-h.sessions
	h.sessions <- s
	e.Abort()
	if _, r := h.end(t); r != (relay.Result{Cause: relay.Shutdown}) {
		t.Errorf("result %+v, want Shutdown", r)
	}
	wantReset(t, client)
}

func TestClientsThatComeAfterAnAbortAreReset(t *testing.T) {
	backend := echo(t)
	onEveryEngineWith(t, func(int, error) (relay.Dial, error) {
		return relay.Dial{Backend: backend, Limit: 10 * time.Second}, nil
	}, func(t *testing.T, h *planned, client net.Conn, e relay.Engine) {
		e.Abort()
		h.end(t)
		visit(t, client.RemoteAddr().String())
		if _, r := h.end(t); r.Cause != relay.Shutdown {
			t.Errorf("result %+v, want Shutdown", r)
		}
	})
}

// A listener's end does not end what came from it: dials go on, on other loops too.
func TestListenerClosesWhileItsConnectionsAreDialled(t *testing.T) {
	t.Parallel()
	for name, start := range engines {
		t.Run(name, func(t *testing.T) {
			e, backend, refuses := start(), echo(t), nobody(t)
			var closed atomic.Bool
			h := newPlanned(func(call int, failed error) (relay.Dial, error) {
				switch {
				case !closed.Load():
					return relay.Dial{Wait: 10 * time.Millisecond}, nil
				case failed == nil:
					return relay.Dial{Backend: refuses, Limit: 10 * time.Second}, nil
				}
				return relay.Dial{Backend: backend, Limit: 10 * time.Second}, nil
			})
			address, l := h.serve(t, e)
			var clients []net.Conn
			for range 50 {
				client, err := net.Dial("tcp", address)
				check(t, err)
				defer client.Close()
				clients = append(clients, client)
			}
			for len(h.sessions) < len(clients) {
				time.Sleep(time.Millisecond)
			}
			l.Close()
			if _, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("dialling a closed listener says %v", err)
			}
			closed.Store(true)
			for _, client := range clients {
				send(t, client, 10)
				receive(t, client, 10)
			}
			if n := len(h.sessions); n != len(clients) {
				t.Errorf("%d sessions of %d clients", n, len(clients))
			}
			e.Close()
		})
	}
}

// Clients keep coming while the listener is closed: whoever has a session is served to the
// end, and no session begins afterwards.
func TestNoSessionBeginsAfterAListenerIsClosed(t *testing.T) {
	t.Parallel()
	for name, start := range engines {
		t.Run(name, func(t *testing.T) {
			e := start()
			for range 20 {
				h := newPlanned(func(int, error) (relay.Dial, error) { return relay.Dial{Wait: time.Hour}, nil })
				address, l := h.serve(t, e)
				stop, ended := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(ended)
					for {
						client, err := net.Dial("tcp", address)
						if err != nil {
							return
						}
						defer client.Close()
						select {
						case <-stop:
							return
						default:
						}
					}
				}()
				s := <-h.sessions
				h.sessions <- s
				l.Close()
				begun := len(h.sessions)
				<-ended
				close(stop)
				if now := len(h.sessions); now != begun {
					t.Fatalf("%d sessions when Close returned, %d later", begun, now)
				}
			}
			e.Close()
		})
	}
}

// Where there is room for one client, and it is there, nobody is kept waiting.
func TestAClientThatTakesTheLastRoomIsNoShortage(t *testing.T) {
	t.Parallel()
	for name, start := range engines {
		t.Run(name, func(t *testing.T) {
			e, backend := start(), echo(t)
			h := newPlanned(func(int, error) (relay.Dial, error) {
				return relay.Dial{Backend: backend, Limit: 10 * time.Second}, nil
			})
			h.most = 1
			address, l := h.serve(t, e)
			for range 2 {
				client, err := net.Dial("tcp", address)
				check(t, err)
				send(t, client, 1)
				receive(t, client, 1)
				check(t, client.Close())
				h.end(t)
			}
			if len(h.short) > 0 {
				t.Error("a shortage was told, but nobody waited")
			}
			first, err := net.Dial("tcp", address)
			check(t, err)
			send(t, first, 1)
			receive(t, first, 1)
			second, err := net.Dial("tcp", address)
			check(t, err)
			<-h.short
			check(t, first.Close())
			send(t, second, 1)
			receive(t, second, 1)
			check(t, second.Close())
			h.end(t)
			h.end(t)
			l.Close()
			e.Close()
		})
	}
}

// echo returns the address of a backend that sends back what it gets, until the test ends.
func echo(t testing.TB) netip.AddrPort {
	t.Helper()
	ln := listen(t)
	t.Cleanup(func() { _ = ln.Close() })
	go serveEcho(ln)
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

func serveEcho(ln *net.TCPListener) {
	for {
		c, err := ln.AcceptTCP()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			buf := make([]byte, 4<<10)
			for {
				n, err := c.Read(buf)
				if err != nil {
					return
				}
				if _, err := c.Write(buf[:n]); err != nil {
					return
				}
			}
		}()
	}
}

// within fails the test unless what it waits for comes in time that the machine had to
// spare.
func within(t testing.TB, limit time.Duration, what string, done func() bool) {
	t.Helper()
	watch := lab.StartStopwatch()
	for !done() {
		if watch.Elapsed() > limit {
			t.Fatalf("%s: not within %v", what, limit)
		}
		time.Sleep(time.Millisecond)
	}
}
