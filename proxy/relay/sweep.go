package relay

import (
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// sweepInterval is how soon the end of a side is noticed that no copying
// goroutine can see.
const sweepInterval = 2 * time.Second

// sweeper looks at all pairs of an engine from time to time. A goroutine that
// waits to write to one side does not read from the other, and so does not hear
// that it was reset, or has closed behind data that nobody takes; while its other
// side hangs, such a pair would live for ever.
type sweeper struct {
	mu    sync.Mutex
	pairs map[*pairState]struct{}
	timer *time.Timer // nil while there are no pairs
}

func (s *sweeper) add(p *pairState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pairs == nil {
		s.pairs = map[*pairState]struct{}{}
	}
	s.pairs[p] = struct{}{}
	if s.timer == nil {
		s.timer = time.AfterFunc(sweepInterval, s.sweep)
	}
}

func (s *sweeper) remove(p *pairState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pairs, p)
}

// sweep is the timer's function.
func (s *sweeper) sweep() {
	s.mu.Lock()
	pairs := slices.Collect(maps.Keys(s.pairs))
	s.mu.Unlock()
	for _, p := range pairs {
		p.look()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pairs) > 0 {
		s.timer.Reset(sweepInterval)
	} else {
		s.timer = nil
	}
}

// look notes what has become of the sides.
func (p *pairState) look() {
	for _, s := range []*side{p.client, p.backend} {
		switch events := s.poll(); {
		case events&unix.POLLERR != 0:
			p.abort(s.reset, errReset, s)
		case events&unix.POLLRDHUP != 0:
			p.ending(s)
		}
	}
}

// poll asks what reading would find at the end of what has been received: an error
// (POLLERR), which asking does not take away from the reader, or FIN (POLLRDHUP).
// See poll(2).
func (s *side) poll() int16 {
	fds := []unix.PollFd{{Events: unix.POLLRDHUP}}
	_ = s.control(func(fd int) error {
		fds[0].Fd = int32(fd)
		_, err := unix.Poll(fds, 0)
		return err
	})
	return fds[0].Revents
}
