package relay

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// pair is one connection on its way: its client, its backend and what is in our hands
// between them. It is its loop's, and plain data but for timer and session.
type pair struct {
	loop            *loop
	session         Session
	state           state
	client, backend end
	up, down        stream // client to backend, and back
	limits          Limits

	cause Cause // why it ends; set once, except that a FIN gives way to anything worse
	err   error

	timer timer  // of the state: a preamble, dialling, a limit, or delivery
	used  int64  // when a byte last moved, or what timer is about began
	acked uint64 // bytes the peers had acknowledged when somebody asked (see checkLimit)
	left  int    // bytes not delivered, while delivering
	pause int64  // between looks, while delivering
	place int    // in written, counted from 1; 0: it is not there

	turn   uint64 // the loop's last turn in which it moved bytes
	queued bool   // in the loop's ready
}

// state is how far a pair has got. It only ever goes on.
type state uint8

const (
	heading    state = iota // waits for the client's preamble
	dialing                 // looks for a backend
	relaying                // both sides are connected
	delivering              // a side is gone; the other gets what came from it
	ended                   // both sockets are closed
)

// end is one of the two connections.
type end struct {
	fd int32 // -1: none

	// What the next system call may find. The poller tells of changes only, so these are
	// kept until a call has said otherwise.
	readable, writable bool
	exhaust            bool // a short read does not mean that nothing is left

	finished bool // its FIN was read
	shut     bool // we have sent it FIN
	gone     bool // reset, or given up: it is not written to any more
}

// begin leads an accepted connection to its backend.
func (l *loop) begin(fd int32, client netip.AddrPort, h Handler) {
	p := &pair{loop: l, client: end{fd: fd}, backend: end{fd: -1}}
	p.timer.owner = p
	p.session = h.Arrive(int(fd), client)
	p.expect()
}

// happened is told of events of one of the sockets.
func (p *pair) happened(fd int32, events uint32) {
	switch p.state {
	case heading:
		p.head()
		return
	case dialing:
		p.answered(events)
		return
	}
	e := &p.backend
	if fd == p.client.fd {
		e = &p.client
	}
	e.note(events)
	p.advance()
	if events&(unix.EPOLLERR|unix.EPOLLHUP|unix.EPOLLRDHUP) != 0 {
		p.notice(e, events)
	}
}

func (e *end) note(events uint32) {
	if events&(unix.EPOLLIN|unix.EPOLLPRI|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		e.readable = true
	}
	if events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		e.writable = true
	}
	if events&(unix.EPOLLPRI|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		e.exhaust = true
	}
}

// notice learns of the end of a side that is not read from: because the other takes nothing
// at present, or because its FIN has been read, and a reset comes after that. An error alone
// may be a notice about a packet (SO_TIMESTAMPING, socket(7)), so the connection's state
// decides.
func (p *pair) notice(e *end, events uint32) {
	if p.state != relaying {
		return
	}
	if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 && tcpState(e.fd) == tcpClose && (events&unix.EPOLLERR != 0 || !e.shut) {
		p.reset(e, errReset)
		return
	}
	if events&unix.EPOLLRDHUP != 0 {
		p.ending(e)
	}
}

// advance moves what can be moved, within the bounds of a turn.
func (p *pair) advance() {
	p.turn = p.loop.turn
	switch p.state {
	case relaying:
		more := p.pump(&p.client, &p.backend, &p.up)
		if p.state != relaying {
			return
		}
		more = p.pump(&p.backend, &p.client, &p.down) || more
		if p.state != relaying {
			return
		}
		if p.complete() {
			p.end()
		} else if more {
			p.goOnLater()
		}
	case delivering:
		p.deliver()
	}
}

// goOnLater gives others their turn first.
func (p *pair) goOnLater() {
	if !p.queued {
		p.queued = true
		p.loop.ready = append(p.loop.ready, p)
	}
}

// complete reports whether both directions have come to their end.
func (p *pair) complete() bool {
	return p.client.finished && p.backend.finished && p.up.empty() && p.down.empty()
}

// end closes both sockets in the way the pair ended: with FIN after a clean end, with RST
// otherwise.
func (p *pair) end() {
	l, clean := p.loop, p.state == relaying && p.complete()
	p.state = ended
	l.timers.clear(&p.timer)
	l.written.remove(p)
	p.up.drop(l)
	p.down.drop(l)
	for _, fd := range [...]int32{p.client.fd, p.backend.fd} {
		if fd < 0 {
			continue
		}
		if clean {
			_ = resetOnClose(fd, false)
		}
		l.unwatch(fd)
	}
	l.connections.Add(-1)
	p.session.Done(Result{Up: max(p.up.moved, 0), Down: p.down.moved, Cause: p.cause, Err: p.err})
}

// expire is called when the timer has run out.
func (p *pair) expire() {
	switch p.state {
	case heading:
		p.giveUp(Unserved, ErrPreambleLate)
	case dialing:
		p.dialTimeout()
	case relaying:
		p.checkLimit()
	case delivering:
		p.deliver()
	}
}
