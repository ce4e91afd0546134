package datagram

import (
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

type option struct{ level, name, value int }

func setOptions(fd int, options ...option) error {
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return nil
}

// newSocket makes a UDP socket that never blocks, and tells the traffic class of what
// it receives.
//
// It never forbids to fragment: whether the sender of a datagram did, no UDP socket can
// tell, and a datagram of a size that passed on one side is to pass on the other.
func newSocket(is4 bool) (int, error) {
	domain := unix.AF_INET6
	options := []option{{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1}}
	if is4 {
		domain = unix.AF_INET
		options = []option{{unix.IPPROTO_IP, unix.IP_RECVTOS, 1}, {unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT}}
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err := setOptions(fd, options...); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	// Take datagrams that the kernel has joined as they are. Linux before 5.0 cannot.
	_ = unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1)
	return fd, nil
}

// What the kernel may keep for a socket, in bytes; it allows twice that, because it
// counts what a datagram occupies: 768 for one of 64 bytes. A listening socket is shared by
// many clients, and a flow's may belong to one that asks for everybody.
const listenBuffer, flowBuffer = 4 << 20, 1 << 20

// setBuffer asks for so much, or, without CAP_NET_ADMIN, for as much of it as the
// system allows.
func setBuffer(fd, force, allowed, size int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, allowed, size)
	}
}

// openSocket gives f a socket that is connected to backend.
func (l *Loop) openSocket(f *flow, backend netip.AddrPort) error {
	is4 := backend.Addr().Is4()
	fd, err := newSocket(is4)
	if err != nil {
		return err
	}
	options := []option{{unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1}} // see unreachable.go
	if is4 {
		options = []option{{unix.IPPROTO_IP, unix.IP_RECVERR, 1}}
	}
	setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, flowBuffer)
	err = setOptions(fd, options...)
	if err == nil {
		err = f.token.Prepare(fd)
	}
	if err == nil {
		err = os.NewSyscallError("connect", unix.Connect(fd, sockaddr(backend)))
	}
	if err == nil {
		err = l.watch(fd, aFlow)
	}
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	f.fd, f.backend = int32(fd), peerOf(backend)
	if more := fd + 1 - len(l.sockets); more > 0 {
		l.sockets = append(l.sockets, make([]*flow, more)...)
	}
	l.sockets[fd] = f
	return nil
}

// closeSocket closes f's socket, if it has one, which takes it out of the epoll
// instance.
func (l *Loop) closeSocket(f *flow) {
	if f.fd < 0 {
		return
	}
	l.sockets[f.fd] = nil
	_ = unix.Close(int(f.fd))
	f.fd = -1
}
