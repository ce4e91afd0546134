package relay

import "golang.org/x/sys/unix"

// limit returns how long nothing may move at present, and what it is called when that is
// over; 0 means for ever.
func (p *pair) limit() (int64, Cause) {
	limit, cause := p.limits.Idle, Idle
	if half := p.limits.HalfClosed; p.cause != 0 && half > 0 && (limit <= 0 || half < limit) {
		limit, cause = half, HalfClosed
	}
	return int64(limit), cause
}

// armLimit sets the timer of the limit in force. The timer is not moved with every byte:
// when it runs out, checkLimit sees whether any has moved since.
func (p *pair) armLimit() {
	limit, _ := p.limit()
	if limit <= 0 {
		p.loop.timers.clear(&p.timer)
		return
	}
	at := p.used + limit
	if p.place > 0 { // the peers may be taking what was written
		at = min(at, p.loop.now+max(limit/4, 1))
	}
	p.loop.timers.set(&p.timer, at)
}

// checkLimit ends the pair if nothing has moved for its limit: no byte through us, and
// none of what we have written to either side.
func (p *pair) checkLimit() {
	if p.place > 0 && p.taken() {
		p.loop.written.remove(p)
	}
	limit, cause := p.limit()
	if limit > 0 && p.loop.now-p.used >= limit {
		p.abort(cause, nil, true, true)
		return
	}
	p.armLimit()
}

// taken reports whether the peers have acknowledged everything. That they took some of it
// since somebody asked counts as movement now.
func (p *pair) taken() bool {
	all := unsent(p.client.fd)+unsent(p.backend.fd) == 0
	if limit, _ := p.limit(); limit <= 0 {
		return all
	}
	if acked := acknowledged(p.client.fd) + acknowledged(p.backend.fd); acked != p.acked {
		p.acked, p.used = acked, p.loop.now
	}
	return all
}

// written are the pairs of a loop whose peers may not have acknowledged everything. Only
// these can have a peer that leaves data unanswered, so only these are looked at.
type written struct{ pairs []*pair }

func (w *written) add(p *pair) {
	if p.place > 0 {
		return
	}
	w.pairs = append(w.pairs, p)
	p.place = len(w.pairs)
	p.loop.needHousework()
	if p.state == relaying {
		p.armLimit()
	}
}

func (w *written) remove(p *pair) {
	if p.place == 0 {
		return
	}
	last := len(w.pairs) - 1
	moved := w.pairs[last]
	w.pairs[p.place-1], moved.place = moved, p.place
	w.pairs[last] = nil
	w.pairs = w.pairs[:last]
	p.place = 0
}

// look takes out the pairs whose peers have everything, and gives up those with a peer
// that does not answer.
func (w *written) look() {
	for i := len(w.pairs) - 1; i >= 0; i-- { // from the end: a pair may leave, and the last takes its place
		if i >= len(w.pairs) {
			continue
		}
		switch p := w.pairs[i]; {
		case p.taken():
			w.remove(p)
		case unanswered(p.client.fd, p.limits.Unanswered):
			p.reset(&p.client, unix.ETIMEDOUT)
		case unanswered(p.backend.fd, p.limits.Unanswered):
			p.reset(&p.backend, unix.ETIMEDOUT)
		}
	}
}
