package datagram

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Listener is one listening socket and its flows. Its methods belong to the owner's
// goroutines, except that none may be called by the Loop, that is from a Router or a
// Token: they wait for the Loop.
type Listener struct {
	loop    *Loop
	addr    netip.AddrPort
	router  Router
	traffic traffic

	// The Loop's.
	fd     int
	parked bool
	flows  table
}

// Listen opens a socket at addr, whose port is not 0, and has router asked for the
// flows of its clients. The socket is parked until Unpark. It is made in the network
// namespace of the calling thread; those of flows are made in that of the program.
// An error wraps EADDRINUSE when the port is taken.
func (l *Loop) Listen(addr netip.AddrPort, router Router) (*Listener, error) {
	fd, err := listeningSocket(addr, -1)
	if err != nil {
		return nil, fmt.Errorf("listen for datagrams on %v: %w", addr.Addr(), err)
	}
	n := &Listener{loop: l, addr: addr, router: router, fd: fd}
	err = n.park()
	if err == nil {
		err = l.call(n.enter)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("listen for datagrams on %v: %w", addr.Addr(), err)
	}
	return n, nil
}

// Addr returns the address n listens on.
func (n *Listener) Addr() netip.AddrPort { return n.addr }

// enter makes n's socket one that the Loop serves.
func (n *Listener) enter() error {
	if err := n.loop.watch(n.fd, aListener); err != nil {
		return err
	}
	n.loop.listeners[int32(n.fd)] = n
	return nil
}

// Park makes the kernel refuse new clients, with ICMP port unreachable, while the
// port stays taken, except that another program may bind to it on one of the
// machine's addresses; then Unpark fails. Flows go on.
func (n *Listener) Park() error {
	return n.call(func() error {
		if n.parked {
			return nil
		}
		return n.park()
	})
}

// Unpark makes a parked Listener serve. If it fails, n stays parked.
func (n *Listener) Unpark() error {
	return n.call(func() error {
		if !n.parked {
			return nil
		}
		return n.unpark()
	})
}

// call has fn done in the Loop, unless n is closed: its descriptor may be somebody
// else's by now.
func (n *Listener) call(fn func() error) error {
	return n.loop.call(func() error {
		if n.loop.listeners[int32(n.fd)] != n {
			return net.ErrClosed
		}
		return fn()
	})
}

// park connects the socket to an address nobody sends from, so that the kernel finds
// no socket for what clients send, and says so to them.
func (n *Listener) park() error {
	loopback := netip.IPv6Loopback()
	if n.addr.Addr().Is4() {
		loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	const discard = 9 // RFC 863
	if err := unix.Connect(n.fd, sockaddr(netip.AddrPortFrom(loopback, discard))); err != nil {
		return fmt.Errorf("park the listener: %w", os.NewSyscallError("connect", err))
	}
	n.parked = true
	return nil
}

// unpark puts a new socket in the place of the parked one. Dissolving its association
// (AF_UNSPEC, connect(2)) would do for IPv4, but an IPv6 socket goes on to hear only
// whom it was connected to (seen in Linux 6.18).
func (n *Listener) unpark() error {
	before := n.fd
	fd, err := listeningSocket(n.addr, before)
	if err != nil {
		return fmt.Errorf("unpark the listener: %w", err)
	}
	n.fd = fd
	if err := n.enter(); err != nil {
		n.fd = before
		return fmt.Errorf("unpark the listener: %w", errors.Join(err, unix.Close(fd)))
	}
	n.parked = false
	delete(n.loop.listeners, int32(before))
	_ = unix.Close(before)
	return nil
}

// Retain ends the flows to endpoints that keep denies, and has clients that were
// refused, or got no socket, asked for again.
func (n *Listener) Retain(keep func(netip.AddrPort) bool) error {
	return n.loop.call(func() error {
		for _, f := range n.flows.all() {
			if f.isTurnedAway() || f.state == open && !keep(f.backend.addrPort()) {
				n.loop.end(f, Removed, nil)
			}
		}
		return nil
	})
}

// Close ends the flows, as Removed, and gives the port up.
func (n *Listener) Close() error {
	return n.loop.call(func() error {
		n.loop.closeListener(n, Removed)
		return nil
	})
}

func (l *Loop) closeListener(n *Listener, cause Cause) {
	if l.listeners[int32(n.fd)] != n {
		return // closed already
	}
	for _, f := range n.flows.all() {
		l.end(f, cause, nil)
	}
	delete(l.listeners, int32(n.fd))
	_ = unix.Close(n.fd)
}

// listeningSocket makes a socket that tells of every datagram where it came to and
// of what class it was. It may share the port with the socket parked, if that is one
// (not -1), and with no other: two that may share would take each other's datagrams.
func listeningSocket(addr netip.AddrPort, parked int) (int, error) {
	fd, err := newSocket(addr.Addr().Is4())
	if err != nil {
		return -1, err
	}
	options := []option{{unix.IPPROTO_IP, unix.IP_PKTINFO, 1}}
	if addr.Addr().Is6() {
		options = []option{{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1}, {unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1}}
	}
	err = setOptions(fd, options...)
	setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, listenBuffer)
	setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, listenBuffer)
	if parked >= 0 && err == nil {
		share := option{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1}
		err = errors.Join(setOptions(fd, share), setOptions(parked, share))
	}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, sockaddr(addr)))
	}
	if parked >= 0 {
		alone := option{unix.SOL_SOCKET, unix.SO_REUSEADDR, 0}
		err = errors.Join(err, setOptions(fd, alone), setOptions(parked, alone))
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
