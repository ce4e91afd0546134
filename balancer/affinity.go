package balancer

import (
	"net/netip"
	"sync/atomic"
	"time"
)

// affinity is the ClientIP session affinity of one Service port: which endpoint
// a client's connections go to until timeout has passed since the last one
// began. It is guarded by the Balancer's mutex.
//
// One timeout holds for all records and each use makes a record the newest, so
// the order of use is the order of expiry, and the oldest record is both the
// next to expire and the one to evict.
type affinity struct {
	max     int
	timeout time.Duration // 0: off
	records map[netip.Addr]*record
	byUse   ring // all records, the least recently used first
	evicted uint64
	// allEvicted counts for several Balancers; may be nil.
	allEvicted *atomic.Uint64

	// timer runs while there are records, and is due no later than the oldest
	// one expires. It calls wake, which takes the mutex.
	timer *time.Timer
	wake  func()
}

// record pins one client to one eligible endpoint.
type record struct {
	client   netip.Addr
	endpoint *endpoint
	used     time.Time
	byUse    link // in affinity.byUse
	ofTarget link // in endpoint.records
}

func (a *affinity) on() bool { return a.timeout > 0 }

// lookup returns the endpoint that client is pinned to, or nil.
func (a *affinity) lookup(client netip.Addr, now time.Time) *endpoint {
	a.expire(now)
	if r := a.records[client]; r != nil {
		return r.endpoint
	}
	return nil
}

// pin makes e the client's endpoint and now its last use.
func (a *affinity) pin(client netip.Addr, e *endpoint, now time.Time) {
	r := a.records[client]
	if r == nil {
		r = a.add(client)
	} else {
		r.byUse.remove()
	}
	r.used = now
	a.byUse.push(&r.byUse)
	if r.endpoint != e {
		if r.endpoint != nil {
			r.ofTarget.remove()
		}
		r.endpoint = e
		e.records.push(&r.ofTarget)
	}
	if a.timer == nil {
		a.timer = time.AfterFunc(a.timeout, a.wake)
	}
}

// add makes a record of client that points nowhere and is in no ring yet.
func (a *affinity) add(client netip.Addr) *record {
	if len(a.records) >= a.max {
		a.drop(a.byUse.first())
		a.evicted++
		if a.allEvicted != nil {
			a.allEvicted.Add(1)
		}
	}
	if a.records == nil {
		a.records = make(map[netip.Addr]*record)
	}
	r := &record{client: client}
	r.byUse.record, r.ofTarget.record = r, r
	a.records[client] = r
	return r
}

// unpin drops the client's record if it points at e.
func (a *affinity) unpin(client netip.Addr, e *endpoint) {
	if r := a.records[client]; r != nil && r.endpoint == e {
		a.drop(r)
	}
}

// forget drops every record that points at e, and looks at no other.
func (a *affinity) forget(e *endpoint) {
	for r := e.records.first(); r != nil; r = e.records.first() {
		a.drop(r)
	}
}

// setTimeout makes timeout, 0 for off, hold for all records from their last use.
func (a *affinity) setTimeout(timeout time.Duration, now time.Time) {
	if timeout = max(timeout, 0); timeout == a.timeout {
		return
	}
	a.expire(now) // what the old timeout ended, a longer one must not revive
	a.timeout = timeout
	a.expire(now)
	a.rearm(now)
}

// expire drops the records that were not used for the timeout or longer.
func (a *affinity) expire(now time.Time) {
	for r := a.byUse.first(); r != nil && now.Sub(r.used) >= a.timeout; r = a.byUse.first() {
		a.drop(r)
	}
}

// rearm sets the timer to when the oldest record expires.
func (a *affinity) rearm(now time.Time) {
	if oldest := a.byUse.first(); oldest != nil {
		a.timer.Reset(oldest.used.Add(a.timeout).Sub(now))
	}
}

// drop removes r; with the last record go the table's memory and the timer.
func (a *affinity) drop(r *record) {
	r.byUse.remove()
	r.ofTarget.remove()
	delete(a.records, r.client)
	if len(a.records) == 0 {
		a.records = nil
		a.timer.Stop()
		a.timer = nil
	}
}
