package proxy

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// shortage sums up failures for want of descriptors, memory or local ports into
// one line an interval: they come by the thousand.
type shortage struct {
	log *slog.Logger

	waiting atomic.Int64 // accepted connections without a descriptor for their backend

	mu    sync.Mutex
	count int
	next  time.Time
}

const shortageInterval = 10 * time.Second

// note counts one failure.
func (s *shortage) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	if now := time.Now(); now.After(s.next) {
		s.log.Warn("short of descriptors, memory or local ports; connections wait (raise the limit on open files: ulimit -n)",
			"error", err, "failures", s.count)
		s.count, s.next = 0, now.Add(shortageInterval)
	}
}

// errOthersWait keeps a listener from accepting while clients accepted earlier wait
// for descriptors: new ones would take each that comes free, and with all of them
// held by clients nobody would be served.
var errOthersWait = errors.New("clients that are already accepted wait for descriptors")

// accept takes a client from the accept queue, unless others come first.
func (s *shortage) accept(ln *net.TCPListener) (*net.TCPConn, error) {
	if s.waiting.Load() > 0 {
		return nil, errOthersWait
	}
	return ln.AcceptTCP()
}

// isShortage tells want of our own from a fault of the endpoint.
func isShortage(err error) bool {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL, syscall.EAGAIN} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
