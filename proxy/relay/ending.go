package relay

import (
	"golang.org/x/sys/unix"
)

// exhausted notes that src has nothing more at present. From one that is gone nothing will
// come.
func (p *pair) exhausted(src *end) {
	src.readable = false
	if src.gone {
		src.finished = true
	}
}

// passEnd passes a FIN on to dst, after all that came before it. When the pair is over,
// closing does that.
//
// It is a FIN, and no reset that looks like one: the kernel tells a reset to one system
// call only, after which reading finds just an end, but no call of ours to the same socket
// goes unheard.
func (p *pair) passEnd(dst *end) {
	if p.state != relaying {
		return
	}
	p.ending(p.other(dst))
	if dst.shut || p.complete() {
		return
	}
	dst.shut = true
	shutdown(dst.fd) // fails if dst is gone, which reading from it tells
}

func (p *pair) other(e *end) *end {
	if e == &p.client {
		return &p.backend
	}
	return &p.client
}

// ending notes which side ended its direction first. Limits.HalfClosed counts from here.
func (p *pair) ending(src *end) {
	if p.cause != 0 {
		return
	}
	p.cause = BackendClosed
	if src == &p.client {
		p.cause = ClientClosed
	}
	p.used = p.loop.now
	p.armLimit()
}

// failed finds out what an error of a side's socket means.
func (p *pair) failed(e *end, errno unix.Errno) {
	switch {
	case p.state == delivering && e.gone: // it has told all
		e.finished = true
	case p.state == delivering:
		p.end()
	case errno == unix.ENOMEM || errno == unix.ENOBUFS || errno == unix.EBADF || errno == unix.EINVAL:
		p.abort(Internal, errno, true, true)
	case errno == unix.EPIPE: // an earlier call was told of the reset
		p.reset(e, errReset)
	default:
		p.reset(e, errno)
	}
}

// reset gives the pair up because e was reset, or has died.
func (p *pair) reset(e *end, err error) {
	if e == &p.client {
		p.abort(ClientReset, err, true, false)
	} else {
		p.abort(BackendReset, err, false, true)
	}
}

// abort gives the pair up because of the sides named: nothing is written to them any more.
// What came from them and is still on its way to the other side is delivered, as long as
// that side takes it.
func (p *pair) abort(cause Cause, err error, client, backend bool) {
	switch {
	case p.state <= dialing:
		p.giveUp(cause, err)
		return
	case p.state == delivering && client && backend:
		p.end()
		return
	case p.state != relaying:
		return
	}
	p.cause, p.err = cause, err
	p.client.gone, p.backend.gone = client, backend
	p.state = delivering
	if client && backend {
		p.end()
		return
	}
	p.used, p.left, p.pause = p.loop.now, -1, int64(firstLook)
	p.direction().src.readable = true // to the end
	p.deliver()
}

// direction returns the ends of what is to be delivered.
func (p *pair) direction() (d struct {
	src, dst *end
	s        *stream
}) {
	d.src, d.dst, d.s = &p.client, &p.backend, &p.up
	if p.backend.gone {
		d.src, d.dst, d.s = &p.backend, &p.client, &p.down
	}
	return d
}

// deliver gives the side that is left what came from the one that is gone, and ends the
// pair when it has all of it, because a reset throws away what it has not. It gives up
// when the side takes nothing for deliveryLimit.
func (p *pair) deliver() {
	l, d := p.loop, p.direction()
	if p.pump(d.src, d.dst, d.s) {
		p.goOnLater()
		return
	}
	if p.state != delivering {
		return
	}
	if left := unsent(d.dst.fd); left != p.left {
		p.left, p.used = left, l.now
	}
	delivered := d.src.finished && d.s.empty() && p.left == 0
	if delivered || tcpState(d.dst.fd) == tcpClose || l.now-p.used >= int64(deliveryLimit) {
		p.end()
		return
	}
	l.timers.set(&p.timer, l.now+p.pause)
	p.pause = min(2*p.pause, int64(longestLook))
}
