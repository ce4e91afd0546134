package balancer

// ring is a list of affinity records, linked through the records themselves: no
// allocation, and a record leaves in constant time. The zero value is empty. It
// must not be copied.
type ring struct{ head link }

// link is a record's place in one ring.
type link struct {
	record     *record // nil in a ring's head
	prev, next *link
}

// push appends l, which is in no ring, as r's last.
func (r *ring) push(l *link) {
	if r.head.next == nil {
		r.head.prev, r.head.next = &r.head, &r.head
	}
	last := r.head.prev
	l.prev, l.next = last, &r.head
	last.next, r.head.prev = l, l
}

// first returns the record pushed first of those in r, or nil.
func (r *ring) first() *record {
	if r.head.next == nil {
		return nil
	}
	return r.head.next.record
}

// remove takes l out of its ring.
func (l *link) remove() {
	l.prev.next, l.next.prev = l.next, l.prev
	l.prev, l.next = nil, nil
}
