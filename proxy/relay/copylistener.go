package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// copyListener is a listening socket that a Copier has taken over.
type copyListener struct {
	copier  *Copier
	ln      *net.TCPListener
	handler Handler
	resumed chan struct{} // a token when the socket may listen again
	closed  chan struct{}
	ended   chan struct{} // the goroutine has
}

// Listen implements Engine.
func (c *Copier) Listen(ln *net.TCPListener, h Handler) (Listener, error) {
	l := &copyListener{
		copier: c, ln: ln, handler: h,
		resumed: make(chan struct{}, 1), closed: make(chan struct{}), ended: make(chan struct{}),
	}
	go l.accept()
	return l, nil
}

// Control implements Listener.
func (l *copyListener) Control(op func(fd int) error) error {
	raw, err := l.ln.SyscallConn()
	if err != nil {
		return err
	}
	var opErr error
	if err := raw.Control(func(fd uintptr) { opErr = op(int(fd)) }); err != nil {
		return err
	}
	return opErr
}

// Resume implements Listener.
func (l *copyListener) Resume() {
	select {
	case l.resumed <- struct{}{}:
	default: // an unused token is still there
	}
}

// Close implements Listener.
func (l *copyListener) Close() {
	close(l.closed)
	_ = l.ln.Close()
	<-l.ended
}

// accept is l's goroutine: it hands every connection to a goroutine of its own, so nothing that befalls one connection delays another.
func (l *copyListener) accept() {
	defer close(l.ended)
	pause := time.Duration(0)
	for {
		conn, err := l.ln.AcceptTCP()
		switch {
		case err == nil:
			pause = 0
			client := addrPort(conn.RemoteAddr())
			if err := l.awaitRoom(); err != nil {
				reset(conn)
				l.handler.TurnedAway(client, err)
				continue
			}
			l.begin(conn, client)
		case errors.Is(err, net.ErrClosed):
			return
		case errors.Is(err, syscall.EINVAL): // accept(2) on a socket that does not listen
			select {
			case <-l.resumed:
			case <-l.closed:
				return
			}
		default: // out of descriptors or memory: the clients wait in the kernel's queue
			pause = min(max(2*pause, shortestPause), longestPause)
			l.handler.Short(err)
			if !l.wait(pause) {
				return
			}
		}
	}
}

// mostWaiting is how many accepted clients may wait for room at once, at all listeners.
const mostWaiting = 32

// Why a client that was accepted cannot be served.
var (
	// ErrNoRoom means that too many wait already.
	ErrNoRoom = errors.New("too few descriptors are left to serve another connection")
	// ErrClosed means that the listener was closed while the client waited.
	ErrClosed = errors.New("the listener was closed")
)

// awaitRoom waits until there is room to serve a client that l has accepted; more
// of them wait in the kernel's queue meanwhile.
func (l *copyListener) awaitRoom() error {
	if l.handler.Reserve() {
		return nil
	}
	defer l.copier.waiting.Add(-1)
	if l.copier.waiting.Add(1) > mostWaiting {
		l.handler.Short(nil)
		return ErrNoRoom
	}
	const longest = 100 * time.Millisecond
	for pause := shortestPause; !l.handler.Reserve(); pause = min(2*pause, longest) {
		l.handler.Short(nil)
		if !l.wait(pause) {
			return ErrClosed
		}
	}
	return nil
}

// wait pauses and reports whether the listener is still open.
func (l *copyListener) wait(pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return true
	case <-l.closed:
		return false
	}
}

// begin begins the session of an accepted connection, and its goroutine.
func (l *copyListener) begin(client *net.TCPConn, addr netip.AddrPort) {
	var session Session
	raw, err := client.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { session = l.handler.Arrive(int(fd), addr) })
	}
	if err != nil { // nothing of ours closes a connection before its session has begun
		reset(client)
		l.handler.Release()
		l.handler.TurnedAway(addr, err)
		return
	}
	l.copier.conns.Go(func() { l.copier.serve(client, session) })
}

// serve is the goroutine of one connection.
func (c *Copier) serve(client *net.TCPConn, session Session) {
	cause, err := c.expect(client, session)
	var backend *net.TCPConn
	if err == nil {
		cause = Unserved
		backend, err = c.dial(session)
	}
	if err != nil {
		if c.ctx.Err() != nil {
			cause, err = Shutdown, nil
		}
		reset(client)
		session.Done(Result{Cause: cause, Err: err})
		return
	}
	limits := session.Connected()
	c.announce(backend, client, session)
	session.Done(c.relay(client, backend, limits))
}

// dial reaches a backend that the session names.
func (c *Copier) dial(session Session) (*net.TCPConn, error) {
	var failed error
	for {
		if err := c.ctx.Err(); err != nil {
			return nil, err
		}
		d, err := session.Next(failed)
		if err != nil {
			return nil, err
		}
		if d.Wait > 0 {
			failed = nil
			select {
			case <-time.After(d.Wait):
				continue
			case <-c.ctx.Done():
				return nil, c.ctx.Err()
			}
		}
		var backend *net.TCPConn
		if backend, failed = c.try(session, d); failed == nil {
			return backend, nil
		}
	}
}

// try dials one backend.
func (c *Copier) try(session Session, d Dial) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(c.ctx, d.Limit)
	defer cancel()
	// KeepAlive: negative leaves it to Prepare.
	dialer := net.Dialer{KeepAlive: -1, Control: func(_, _ string, raw syscall.RawConn) error {
		var prepareErr error
		err := raw.Control(func(fd uintptr) { prepareErr = session.Prepare(int(fd)) })
		return errors.Join(err, prepareErr)
	}}
	// DialTCP would bind(2) the socket, if only to no address. A port that bind has chosen is
	// kept for one socket, TIME_WAIT included; connect(2) shares ports between backends.
	conn, err := dialer.DialContext(ctx, "tcp", d.Backend.String())
	if err == nil {
		return conn.(*net.TCPConn), nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil { // the socket's deadline may strike before ctx's
		return nil, fmt.Errorf("%w after %v", ErrNoAnswer, d.Limit)
	}
	return nil, err
}

// reset closes a connection with RST. A FIN would look like an answer of no bytes.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}

// addrPort returns the address of a TCP socket, an IPv4-mapped one as IPv4.
func addrPort(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
