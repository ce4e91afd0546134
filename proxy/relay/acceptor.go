package relay

import (
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// acceptor is a listening socket that a loop watches. It implements Listener.
type acceptor struct {
	fd      int32
	handler Handler
	loop    *loop
	timer   timer // while nothing can be accepted
	pause   int64
	closed  bool
	given   sync.WaitGroup // connections handed to other loops that have not begun there
}

// turnAccepts is how many connections are accepted before others get their turn.
const turnAccepts = 32

// detach takes the socket out of ln, which it closes. Left there, the runtime would be
// woken for every client too.
func detach(ln *net.TCPListener) (int32, error) {
	defer func() { _ = ln.Close() }()
	raw, err := ln.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, opErr := -1, error(nil)
	if err := raw.Control(func(own uintptr) { fd, opErr = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return -1, err
	}
	return int32(fd), os.NewSyscallError("fcntl", opErr)
}

// open begins to accept; called in the loop. What is set here, accepted sockets inherit
// (tcp(7), socket(7)).
func (a *acceptor) open() error {
	if err := setOption(a.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	if err := resetOnClose(a.fd, true); err != nil {
		return err
	}
	return a.loop.watch(a.fd, watched{acceptor: a}, unix.EPOLLIN)
}

// Control implements Listener.
func (a *acceptor) Control(op func(fd int) error) error { return op(int(a.fd)) }

// Resume implements Listener. There is nothing to do: a client that comes is an event.
func (a *acceptor) Resume() {}

// Close implements Listener.
func (a *acceptor) Close() {
	_ = a.loop.call(a.closeSocket)
	a.given.Wait()
}

func (a *acceptor) closeSocket() error {
	a.closed = true
	a.loop.timers.clear(&a.timer)
	a.loop.unwatch(a.fd)
	return nil
}

// expire tries again what could not be done before.
func (a *acceptor) expire() { a.accept() }

// accept takes the connections that wait. The socket tells of new ones only (EPOLLET), so
// accept goes on until there is none, or comes back by its timer.
func (a *acceptor) accept() {
	for range turnAccepts {
		if a.closed || a.timer.place > 0 {
			return
		}
		if !a.handler.Reserve() {
			a.wait(nil)
			return
		}
		fd, client, errno := accept(a.fd, &a.loop.room)
		if errno == 0 {
			a.pause = 0
			a.give(fd, client)
			continue
		}
		a.handler.Release()
		switch errno {
		case unix.EAGAIN, unix.EINVAL: // there is none, or the socket does not listen
			return
		case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM: // the clients wait in the kernel's queue
			a.wait(errno)
			return
		}
		// An error of the connection that was next (accept(2)); there may be more.
	}
	a.loop.timers.set(&a.timer, a.loop.now+1)
}

// wait has accept called later, if there is a client that waits: accept(2) wants a free
// descriptor before it looks.
func (a *acceptor) wait(err error) {
	if !readable(a.fd) {
		return // a client that comes is an event
	}
	a.handler.Short(err)
	a.pause = min(max(2*a.pause, int64(shortestPause)), int64(longestPause))
	a.loop.timers.set(&a.timer, a.loop.now+a.pause)
}

// give takes an accepted connection to the loop that is to have it.
func (a *acceptor) give(fd int32, client netip.AddrPort) {
	to := a.loop.engine.least(a.loop)
	to.connections.Add(1)
	if to == a.loop {
		to.begin(fd, client, a.handler)
		return
	}
	a.given.Add(1)
	to.post(func() {
		defer a.given.Done()
		to.begin(fd, client, a.handler)
	})
}

// resetOnClose says whether closing a socket is to send RST, and not FIN (SO_LINGER in
// socket(7)). Should the process die, the kernel closes: a FIN would make truncated data
// look complete.
func resetOnClose(fd int32, reset bool) error {
	linger := unix.Linger{}
	if reset {
		linger.Onoff = 1
	}
	return setLinger(fd, linger)
}
