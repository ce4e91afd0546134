package relay

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// control runs a system call on the connection's descriptor.
func (s *side) control(call func(fd int32)) error {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { call(int32(fd)) })
}

// state returns the TCP state, or 0 when it cannot be told.
func (s *side) state() (state uint8) {
	_ = s.control(func(fd int32) { state = tcpState(fd) })
	return state
}

// wasReset tells a reset that looks like EOF from a real one. The kernel reports
// a reset to one system call only; when the writing direction took it, reading
// finds just an ended connection. Once we have sent FIN nobody writes, so reading
// is told itself, and the state CLOSE is an ordinary end. The state is asked for
// first: a FIN that we send in between may bring about CLOSE too.
func (s *side) wasReset() bool {
	return s.state() == tcpClose && !s.finSent.Load()
}

func (s *side) unanswered(limit time.Duration) (is bool) {
	_ = s.control(func(fd int32) { is = unanswered(fd, limit) })
	return is
}

func (s *side) unsent() (n int) {
	_ = s.control(func(fd int32) { n = unsent(fd) })
	return n
}

// awaitDelivery waits until the peer has everything that was written to it,
// because a reset throws away what it has not. It gives up when the peer takes
// nothing for deliveryLimit, and when ctx ends.
func (s *side) awaitDelivery(ctx context.Context) {
	left, since := s.unsent(), time.Now()
	for pause := firstLook; left > 0 && s.state() != tcpClose; pause = min(2*pause, longestLook) {
		if ctx.Err() != nil || time.Since(since) >= deliveryLimit {
			return
		}
		time.Sleep(pause)
		if now := s.unsent(); now < left {
			left, since = now, time.Now()
		}
	}
}

// poll asks what reading would find at the end of what has been received: an error
// (POLLERR), which asking does not take away from the reader, or FIN (POLLRDHUP).
// See poll(2).
func (s *side) poll() int16 {
	fds := []unix.PollFd{{Events: unix.POLLRDHUP}}
	_ = s.control(func(fd int32) {
		fds[0].Fd = fd
		_, _ = unix.Poll(fds, 0)
	})
	return fds[0].Revents
}

// moved returns a number that grows with every byte received from or
// acknowledged by either side.
func (p *pairState) moved() uint64 {
	var sum uint64
	for _, s := range []*side{p.client, p.backend} {
		_ = s.control(func(fd int32) {
			if info, err := tcpInfo(fd); err == nil {
				sum += info.Bytes_received + info.Bytes_acked
			}
		})
	}
	return sum
}
