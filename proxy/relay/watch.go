package relay

import (
	"sync"
	"time"
)

// watch ends a pair on which no byte has moved for its limit. io.Copy under
// splice(2) tells nobody about progress, so the watch asks the kernel's byte
// counters four times a limit: a pair is ended between 1 and 1¼ limits after its
// last byte. There is no timer while no limit applies.
type watch struct {
	mu      sync.Mutex
	pair    *pairState
	timer   *time.Timer
	half    bool
	stopped bool
	moved   uint64
	since   time.Time // when moved last grew
}

// start begins to watch p while it is open in both directions.
func (w *watch) start(p *pairState) {
	w.pair = p
	if p.limits.Idle > 0 {
		w.rearm()
	}
}

// halfClosed begins to watch for the half-closed limit.
func (w *watch) halfClosed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.half || w.stopped || w.pair.limits.HalfClosed <= 0 {
		return
	}
	w.half = true
	w.stopTimer()
	w.rearm()
}

// stop ends the watch.
func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.stopTimer()
}

func (w *watch) stopTimer() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// rearm starts counting afresh.
func (w *watch) rearm() {
	w.moved, w.since = w.pair.moved(), time.Now()
	w.timer = time.AfterFunc(w.limit()/4, w.tick)
}

// limit is the limit that applies now, and cause its name.
func (w *watch) limit() time.Duration {
	if w.half {
		return w.pair.limits.HalfClosed
	}
	return w.pair.limits.Idle
}

func (w *watch) cause() Cause {
	if w.half {
		return HalfClosed
	}
	return Idle
}

// tick is the timer's function.
func (w *watch) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	if moved := w.pair.moved(); moved != w.moved {
		w.moved, w.since = moved, time.Now()
	}
	if time.Since(w.since) >= w.limit() {
		w.pair.abort(w.cause(), nil, w.pair.client, w.pair.backend)
		return
	}
	w.timer.Reset(w.limit() / 4)
}
