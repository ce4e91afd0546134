package relay

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Preamble is what a Session may implement besides: a connection may begin with bytes that
// are not the client's, such as a proxy's word about who that is. What the client sends of
// them is the Session's and not relayed, and what the backend is sent is put before the
// client's data; neither counts in Result.
//
// The bytes are peeked at and stay in the socket until they are complete, so a connection
// that waits for them holds no more than one that is relayed, and behaves thereafter as if
// it had begun there.
type Preamble interface {
	Session
	// Expect is called first, and says how long the client may take to send its preamble,
	// from now on; 0: it sends none. Until then Next is not asked.
	Expect() time.Duration
	// Received is given what has come so far, 16 KiB at the most, and says how many of these
	// bytes the preamble is: 0 until it is complete. It is called again with more. An
	// error ends the connection: its client is reset, and Cause is Unserved. Received must
	// not keep b.
	Received(b []byte) (int, error)
	// Announce is called after Connected and returns what the backend is sent before the
	// client's data, some KiB at the most; nil: nothing.
	Announce() []byte
}

// Why a preamble is not complete.
var (
	ErrPreambleLate = errors.New("not complete in time")
	ErrPreambleCut  = errors.New("the client closed before it was complete")
)

// tcpCloseWait is TCP_CLOSE_WAIT of <netinet/tcp.h>: the peer sends no more.
const tcpCloseWait = 8

// expected returns how long a client may take to send its preamble; 0: it sends none.
func expected(s Session) time.Duration {
	if p, is := s.(Preamble); is {
		return p.Expect()
	}
	return 0
}

// receivePreamble shows s what has come from a client, and takes the preamble out of the
// socket once it is complete. An error of the socket means that the client was reset.
func receivePreamble(fd int32, room []byte, s Preamble) (complete bool, cause Cause, err error) {
	n, errno := peek(fd, room)
	switch {
	case errno == unix.EAGAIN:
		return false, 0, nil
	case errno != 0:
		return false, ClientReset, errno
	case n == 0:
		return false, Unserved, ErrPreambleCut
	}
	size, err := s.Received(room[:n])
	if err != nil {
		return false, Unserved, err
	}
	if size == 0 {
		return awaitPreamble(fd, n)
	}
	if n, errno := receive(fd, room[:size]); errno != 0 || n != size { // cannot be: it was seen
		return false, ClientReset, errReset
	}
	return true, 0, nil
}

// awaitPreamble reports an error if nothing is to follow the n bytes that were seen.
func awaitPreamble(fd int32, n int) (complete bool, cause Cause, err error) {
	switch tcpState(fd) {
	case tcpClose:
		return false, ClientReset, errReset
	case tcpCloseWait:
		if unread(fd) <= n { // else more has come since
			return false, Unserved, ErrPreambleCut
		}
	}
	return false, 0, nil
}

// announcement returns what a backend is to be sent first.
func announcement(s Session) []byte {
	if p, is := s.(Preamble); is {
		return p.Announce()
	}
	return nil
}

// expect waits for the client's preamble, if it sends one, and goes on to dial.
func (p *pair) expect() {
	l := p.loop
	limit := expected(p.session)
	if limit <= 0 || l.aborted {
		p.dial(nil)
		return
	}
	p.state = heading
	if p.head() { // most often it has come with the connection
		return
	}
	l.timers.set(&p.timer, l.now+int64(limit))
	if err := l.watch(p.client.fd, watched{pair: p}, unix.EPOLLIN|unix.EPOLLRDHUP); err != nil {
		p.giveUp(Internal, err)
	}
}

// head looks at what has come of the preamble, and reports whether it need not be waited for
// any more.
func (p *pair) head() (over bool) {
	complete, cause, err := receivePreamble(p.client.fd, p.loop.scratch, p.session.(Preamble))
	switch {
	case err != nil:
		p.giveUp(cause, err)
	case complete:
		p.loop.forget(p.client.fd)
		p.dial(nil)
	default:
		return false
	}
	return true
}

// forget tells the loop no more of what happens to fd, if it does.
func (l *loop) forget(fd int32) {
	if int(fd) < len(l.watched) && l.watched[fd].pair != nil {
		l.watched[fd] = watched{}
		l.poller.forget(fd)
	}
}

// announce sends the backend what is to come before the client's data, in one segment with
// it where that is there already. What the socket does not take is held as if it had come
// from the client.
func (p *pair) announce() {
	b := announcement(p.session)
	if len(b) == 0 {
		return
	}
	p.up.moved = -int64(len(b)) // it does not count
	n, errno := sendBefore(p.backend.fd, b, unread(p.client.fd) > 0)
	if errno != 0 {
		n = 0
		p.backend.writable = errno != unix.EAGAIN // another error is met again by the next write
	}
	p.moved(&p.up, n)
	if n < len(b) {
		p.up.held = append(p.loop.takeBuffer()[:0], b[n:]...)
	}
}

// rooms are buffers in which Copiers look at preambles.
var rooms = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// expect waits for the client's preamble, if it sends one.
func (c *Copier) expect(client *net.TCPConn, session Session) (Cause, error) {
	limit := expected(session)
	if limit <= 0 {
		return 0, nil
	}
	s := session.(Preamble)
	raw, err := client.SyscallConn()
	if err != nil {
		return Internal, err
	}
	_ = client.SetReadDeadline(time.Now().Add(limit))
	unbind := context.AfterFunc(c.ctx, func() { _ = client.SetReadDeadline(time.Now()) })
	var complete bool
	var cause Cause
	var failed error
	for pause := firstLook; !complete && failed == nil && err == nil; pause = min(2*pause, longestLook) {
		err = raw.Read(func(fd uintptr) bool {
			room := rooms.Get().(*[bufferSize]byte)
			defer rooms.Put(room)
			complete, cause, failed = receivePreamble(int32(fd), room[:], s)
			return complete || failed != nil
		})
		if refusedRead(err) { // a reset is just coming
			time.Sleep(pause)
			err = nil
		}
	}
	if unbind() {
		_ = client.SetReadDeadline(time.Time{})
	}
	if err != nil { // the deadline
		return Unserved, ErrPreambleLate
	}
	return cause, failed
}

// announce sends the backend what is to come before the client's data. An error is met again
// by the first byte that is relayed.
func (c *Copier) announce(backend, client *net.TCPConn, session Session) {
	b := announcement(session)
	if len(b) == 0 {
		return
	}
	more := false
	inspect(client, func(fd uintptr) { more = unread(int32(fd)) > 0 })
	raw, err := backend.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Write(func(fd uintptr) bool {
		n, errno := sendBefore(int32(fd), b, more)
		if errno == unix.EAGAIN {
			return false
		}
		b = b[max(n, 0):]
		return errno != 0 || len(b) == 0
	})
}

func inspect(conn syscall.Conn, look func(fd uintptr)) {
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(look)
	}
}
