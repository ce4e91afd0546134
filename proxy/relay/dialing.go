package relay

import (
	"os"

	"golang.org/x/sys/unix"
)

// dial asks the session for backends until one may be reached, one is to be waited for, or
// there is none. The answer is an event of the backend's socket.
func (p *pair) dial(failed error) {
	l := p.loop
	p.state = dialing
	for {
		if l.aborted {
			p.giveUp(Shutdown, nil)
			return
		}
		d, err := p.session.Next(failed)
		switch {
		case err != nil:
			p.giveUp(Unserved, err)
			return
		case d.Wait > 0:
			l.timers.set(&p.timer, l.now+int64(d.Wait))
			return
		}
		if failed = p.connect(d); failed == nil {
			l.timers.set(&p.timer, l.now+int64(d.Limit))
			return
		}
	}
}

// giveUp resets the client, which gets no backend. A FIN would look like an answer of no
// bytes.
func (p *pair) giveUp(cause Cause, err error) {
	p.cause, p.err = cause, err
	p.end()
}

// connect begins to connect to a backend.
func (p *pair) connect(d Dial) error {
	family := unix.AF_INET
	if d.Backend.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err := p.connectSocket(int32(fd), d); err != nil {
		_ = unix.Close(fd)
		return err
	}
	p.backend = end{fd: int32(fd)}
	if err := p.loop.watch(p.backend.fd, watched{pair: p}, pairEvents); err != nil {
		p.closeBackend()
		return err
	}
	return nil
}

const pairEvents = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLPRI

func (p *pair) connectSocket(fd int32, d Dial) error {
	if err := p.session.Prepare(int(fd)); err != nil {
		return err
	}
	if err := setOption(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	if err := resetOnClose(fd, true); err != nil {
		return err
	}
	if errno := connect(fd, d.Backend, &p.loop.room); errno != 0 {
		return os.NewSyscallError("connect", errno)
	}
	// A socket that dials a port of those that the kernel takes its own from may meet
	// itself (simultaneous open, RFC 9293, 3.5).
	if l := p.loop; d.Backend.Port() >= l.engine.ephemeral && localAddr(fd, &l.room) == d.Backend {
		return os.NewSyscallError("connect", unix.ECONNREFUSED)
	}
	return nil
}

// answered is told of events of the backend's socket while it connects.
func (p *pair) answered(events uint32) {
	if p.backend.fd < 0 {
		return // an event of a socket that was given up in this turn
	}
	if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		failed := unix.ECONNREFUSED
		if n, err := unix.GetsockoptInt(int(p.backend.fd), unix.SOL_SOCKET, unix.SO_ERROR); err == nil && n != 0 {
			failed = unix.Errno(n)
		}
		p.closeBackend()
		p.dial(os.NewSyscallError("connect", failed))
		return
	}
	if events&unix.EPOLLOUT != 0 {
		p.connected(events)
	}
}

// connected begins to relay. The client's request is most likely there by now, so it is
// read without being told.
func (p *pair) connected(events uint32) {
	l := p.loop
	l.timers.clear(&p.timer)
	p.state = relaying
	p.limits = p.session.Connected()
	p.backend.note(events)
	p.client.readable, p.client.writable = true, true
	if err := l.watch(p.client.fd, watched{pair: p}, pairEvents); err != nil {
		p.abort(Internal, err, true, true)
		return
	}
	p.used = l.now
	p.armLimit()
	p.announce()
	p.advance()
}

// dialTimeout is called when a backend has let its time pass, or a wait is over.
func (p *pair) dialTimeout() {
	if p.backend.fd < 0 {
		p.dial(nil)
		return
	}
	p.closeBackend()
	p.dial(ErrNoAnswer)
}

func (p *pair) closeBackend() {
	p.loop.unwatch(p.backend.fd)
	p.backend.fd = -1
}
