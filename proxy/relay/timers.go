package relay

import (
	"container/heap"
	"math"
)

// timer is when its owner wants to be called. It belongs to one loop and is part of its
// owner, so that setting it allocates nothing.
type timer struct {
	at    int64 // on the loop's clock
	place int   // in the heap, counted from 1; 0: not set
	owner interface{ expire() }
}

// timers are a loop's, the earliest first.
type timers []*timer

// set has t's owner called at a time, instead of any time set before. One below 0 is so far
// ahead that the sum was too large for the clock.
func (h *timers) set(t *timer, at int64) {
	if at < 0 {
		at = math.MaxInt64
	}
	if t.place > 0 {
		t.at = at
		heap.Fix(h, t.place-1)
		return
	}
	t.at = at
	heap.Push(h, t)
}

func (h *timers) clear(t *timer) {
	if t.place > 0 {
		heap.Remove(h, t.place-1)
	}
}

// next returns the earliest time set, 0 if there is none.
func (h timers) next() int64 {
	if len(h) == 0 {
		return 0
	}
	return h[0].at
}

// expire calls the owners whose time has come. They may set their timers again, but not
// for now.
func (h *timers) expire(now int64) {
	for len(*h) > 0 && (*h)[0].at <= now {
		t := heap.Pop(h).(*timer)
		t.owner.expire()
	}
}

// Len, Less, Swap, Push and Pop are for container/heap.
func (h timers) Len() int           { return len(h) }
func (h timers) Less(i, j int) bool { return h[i].at < h[j].at }
func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

func (h *timers) Push(x any) {
	t := x.(*timer)
	*h = append(*h, t)
	t.place = len(*h)
}

func (h *timers) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	t.place = 0
	return t
}
