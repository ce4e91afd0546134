package relay

import (
	"maps"
	"runtime"
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
//
// It also gives back the pipes of splice(2). The Go runtime keeps them in a pool that
// only its garbage collector empties, which may not run for minutes on an idle node;
// until then the descriptors of a burst of connections would all stay open.
type sweeper struct {
	mu    sync.Mutex
	pairs map[*pairState]struct{}
	ended int         // pairs since the pool was emptied
	timer *time.Timer // nil while there is nothing to do
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
	s.ended++
}

// sweep is the timer's function.
func (s *sweeper) sweep() {
	s.mu.Lock()
	pairs := slices.Collect(maps.Keys(s.pairs))
	idlePipes := s.ended > len(pairs)
	if idlePipes {
		s.ended = 0
	}
	s.mu.Unlock()
	for _, p := range pairs {
		p.look()
	}
	if idlePipes {
		emptyPools()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pairs) > 0 || s.ended > 0 {
		s.timer.Reset(sweepInterval)
	} else {
		s.timer = nil
	}
}

// emptyPools makes the runtime forget what its pools hold: the first collection
// puts it aside, the second one drops it.
func emptyPools() {
	runtime.GC()
	runtime.GC()
}

// look notes what has become of the sides.
func (p *pairState) look() {
	for _, s := range []*side{p.client, p.backend} {
		switch events := s.poll(); {
		case events&unix.POLLERR != 0:
			p.abort(s.reset, errReset, s)
		case s.unanswered(p.limits.Unanswered):
			p.abort(s.reset, unix.ETIMEDOUT, s)
		case events&unix.POLLRDHUP != 0:
			p.ending(s)
		}
	}
}
