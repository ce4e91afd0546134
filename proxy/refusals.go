package proxy

import (
	"log/slog"
	"time"
)

// refusals bounds the records of UDP clients that are refused. A source is easily
// forged, so one machine could fill the connection log and crowd out all others. What
// is not recorded is counted all the same, and summed up in one line an interval.
// It belongs to the goroutine that serves flows.
type refusals struct {
	log      *slog.Logger
	until    time.Time // the second in which so many were recorded
	recorded int
	left     int       // not recorded since the last line
	next     time.Time // when the next line may be
}

// mostRefusals is how many are recorded a second.
const mostRefusals = 100

// mayRecord reports whether one more may be recorded now.
func (r *refusals) mayRecord() bool {
	now := time.Now()
	if !now.Before(r.until) {
		r.until, r.recorded = now.Add(time.Second), 0
	}
	if r.recorded < mostRefusals {
		r.recorded++
		return true
	}
	r.left++
	if !now.Before(r.next) {
		r.log.Warn("too many clients of UDP are refused to record each; their sources may be forged", "unrecorded", r.left)
		r.left, r.next = 0, now.Add(shortageInterval)
	}
	return false
}
