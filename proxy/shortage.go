package proxy

import (
	"errors"
	"log/slog"
	"sync"
	"syscall"
	"time"
)

// shortage sums up failures for want of descriptors, memory or local ports into
// one line an interval: they come by the thousand.
type shortage struct {
	log *slog.Logger

	mu    sync.Mutex
	count int
	next  time.Time
}

const shortageInterval = 10 * time.Second

// note counts one failure.
func (s *shortage) note(err error) {
	if failures, say := s.add(); say {
		s.log.Warn("short of descriptors, memory or local ports; connections wait, datagrams are dropped (raise the limit on open files: ulimit -n)",
			"error", err, "failures", failures)
	}
}

// add counts one failure and returns how many there were since the last line, if
// it is time for another one.
func (s *shortage) add() (failures int, say bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	now := time.Now()
	if now.Before(s.next) {
		return 0, false
	}
	failures, s.count, s.next = s.count, 0, now.Add(shortageInterval)
	return failures, true
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
