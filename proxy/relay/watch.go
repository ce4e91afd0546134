package relay

import (
	"sync"
	"time"
)

// watch acts when no byte of a pair has moved for a limit. io.Copy under splice(2)
// tells nobody about progress, so the watch asks the kernel's byte counters four
// times a limit: it acts between 1 and 1¼ limits after the last byte. While no
// limit is set there is no timer.
type watch struct {
	moved func() uint64 // grows with every byte

	mu      sync.Mutex
	current *limit // in force; nil when none is
	stopped bool
}

type limit struct {
	length  time.Duration
	expired func()
	timer   *time.Timer
	moved   uint64
	since   time.Time // when moved last grew
}

// set replaces the limit in force, if there is one, and counts afresh; 0 means no
// limit. expired is called from a goroutine of its own, once at most.
func (w *watch) set(length time.Duration, expired func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clear()
	if w.stopped || length <= 0 {
		return
	}
	l := &limit{length: length, expired: expired, moved: w.moved(), since: time.Now()}
	l.timer = time.AfterFunc(length/4, func() { w.tick(l) })
	w.current = l
}

// tick is the timer's function.
func (w *watch) tick(l *limit) {
	if w.reached(l) {
		l.expired()
	}
}

// reached reports whether l is in force and reached; if it is in force and not
// reached, it is looked at again later.
func (w *watch) reached(l *limit) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current != l {
		return false
	}
	if moved := w.moved(); moved != l.moved {
		l.moved, l.since = moved, time.Now()
	}
	if time.Since(l.since) >= l.length {
		return true
	}
	l.timer.Reset(l.length / 4)
	return false
}

// stop ends the watch for good.
func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clear()
	w.stopped = true
}

func (w *watch) clear() {
	if w.current != nil {
		w.current.timer.Stop()
		w.current = nil
	}
}
