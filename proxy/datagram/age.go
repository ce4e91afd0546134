package datagram

import (
	"math"
	"slices"
	"time"
)

// age is the flows of one idle limit in the order of their last use. So the flow
// whose time is up is always an oldest one, and so is the least recently used of all;
// and there are as many lists as there are different limits, which is a handful.
type age struct {
	limit          int64
	newest, oldest *flow
}

func (a *age) push(f *flow) {
	f.age, f.older, f.newer = a, a.newest, nil
	if a.newest != nil {
		a.newest.newer = f
	} else {
		a.oldest = f
	}
	a.newest = f
}

func (a *age) remove(f *flow) {
	if f.newer != nil {
		f.newer.older = f.older
	} else {
		a.newest = f.older
	}
	if f.older != nil {
		f.older.newer = f.newer
	} else {
		a.oldest = f.newer
	}
	f.newer, f.older, f.age = nil, nil, nil
}

// limit sets the idle limit of f, from now on.
func (l *Loop) limit(f *flow, limit time.Duration) {
	if f.age != nil {
		f.age.remove(f)
	}
	limit = min(max(limit, time.Millisecond), math.MaxInt64/2) // added to now, it must not overflow
	at := slices.IndexFunc(l.ages, func(a *age) bool { return a.limit == int64(limit) })
	if at < 0 {
		at = len(l.ages)
		l.ages = append(l.ages, &age{limit: int64(limit)})
	}
	f.used = l.now
	l.ages[at].push(f)
}

// touch notes that f is in use.
func (l *Loop) touch(f *flow) {
	f.used = l.now
	if a := f.age; a.newest != f {
		a.remove(f)
		a.push(f)
	}
}

// expire ends the flows whose time is up and returns when the next one's will be, on
// the Loop's clock; 0: there is none.
func (l *Loop) expire() (next int64) {
	next = l.expireAge(&l.turnedAway, 0)
	for _, a := range l.ages {
		next = l.expireAge(a, next)
	}
	l.ages = slices.DeleteFunc(l.ages, func(a *age) bool { return a.oldest == nil })
	return next
}

// expireAge is expire for the flows of a. It returns next or, if that is earlier or 0,
// when the time of the next one of a will be up.
func (l *Loop) expireAge(a *age, next int64) int64 {
	for a.oldest != nil && a.oldest.used+a.limit <= l.now {
		l.end(a.oldest, Idle, nil)
	}
	if a.oldest != nil && (next == 0 || a.oldest.used+a.limit < next) {
		return a.oldest.used + a.limit
	}
	return next
}

// evict ends the least recently used flow, but none that is turned away and so takes up
// nothing, and reports whether there was one.
func (l *Loop) evict() bool {
	var oldest *flow
	for _, a := range l.ages {
		if a.oldest != nil && (oldest == nil || a.oldest.used < oldest.used) {
			oldest = a.oldest
		}
	}
	if oldest == nil {
		return false
	}
	l.counts.evicted.Add(1)
	l.end(oldest, Evicted, nil)
	return true
}
