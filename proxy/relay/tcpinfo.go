package relay

import (
	"context"
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tcpClose is TCP_CLOSE of <netinet/tcp.h>: the connection was reset, timed out,
// or has been closed by both sides.
const tcpClose = 7

// deliveryLimit is how long the other side of a reset may take nothing of what was
// received before the reset, until it is reset too.
const deliveryLimit = 5 * time.Second

// errReset stands for a reset whose error the opposite direction has consumed.
var errReset = error(syscall.ECONNRESET)

// control runs a system call on the connection's descriptor.
func (s *side) control(call func(fd int) error) error {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return err
	}
	var callErr error
	err = raw.Control(func(fd uintptr) { callErr = call(int(fd)) })
	return errors.Join(err, callErr)
}

// info returns the kernel's view of the connection (TCP_INFO, tcp(7)).
func (s *side) info() (info *unix.TCPInfo, err error) {
	err = s.control(func(fd int) (err error) {
		info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err
	})
	return info, err
}

// state returns the TCP state, or 0 when it cannot be told.
func (s *side) state() uint8 {
	info, err := s.info()
	if err != nil {
		return 0
	}
	return info.State
}

// wasReset tells a reset that looks like EOF from a real one. The kernel reports
// a reset to one system call only; when the writing direction took it, reading
// finds just an ended connection. Once we have sent FIN nobody writes, so reading
// is told itself, and the state CLOSE is an ordinary end. The state is asked for
// first: a FIN that we send in between may bring about CLOSE too.
func (s *side) wasReset() bool {
	return s.state() == tcpClose && !s.finSent.Load()
}

// unanswered reports whether the peer has not acknowledged anything for longer than
// limit although it was asked to, by data or by probes of its closed window: TCP
// keepalive does not ask while data waits. A live peer that reads nothing answers.
func (s *side) unanswered(limit time.Duration) bool {
	if limit <= 0 {
		return false
	}
	info, err := s.info()
	return err == nil && info.Probes+info.Retransmits > 0 && time.Duration(info.Last_ack_recv)*time.Millisecond > limit
}

// unsent returns how many written bytes the peer has not acknowledged (SIOCOUTQ,
// tcp(7)).
func (s *side) unsent() (n int) {
	_ = s.control(func(fd int) (err error) {
		n, err = unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		return err
	})
	return n
}

// awaitDelivery waits until the peer has everything that was written to it,
// because a reset throws away what it has not. It gives up when the peer takes
// nothing for deliveryLimit, and when ctx ends.
func (s *side) awaitDelivery(ctx context.Context) {
	const first, longest = time.Millisecond, 50 * time.Millisecond
	left, since := s.unsent(), time.Now()
	for pause := first; left > 0 && s.state() != tcpClose; pause = min(2*pause, longest) {
		if ctx.Err() != nil || time.Since(since) >= deliveryLimit {
			return
		}
		time.Sleep(pause)
		if now := s.unsent(); now < left {
			left, since = now, time.Now()
		}
	}
}

// moved returns a number that grows with every byte received from or
// acknowledged by either side.
func (p *pairState) moved() uint64 {
	var sum uint64
	for _, s := range []*side{p.client, p.backend} {
		if info, err := s.info(); err == nil {
			sum += info.Bytes_received + info.Bytes_acked
		}
	}
	return sum
}
