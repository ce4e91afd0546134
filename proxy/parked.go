package proxy

import (
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// park makes the kernel refuse connections to ln's port, before any handshake,
// while ln keeps the port: shutdown(2) for reading takes a listening socket back
// to the state it had between bind and listen. Connections that were accepted
// live on; those waiting to be accepted are reset.
//
// The port stays bound only because it was asked for by number: a port the kernel
// chose is given up here (SOCK_BINDPORT_LOCK in the kernel's inet_bind). Without
// SO_REUSEADDR no other socket can take it meanwhile.
func park(ln *net.TCPListener) error {
	return onDescriptor(ln, func(fd int) error {
		if err := unix.Shutdown(fd, unix.SHUT_RD); err != nil {
			return os.NewSyscallError("shutdown", err)
		}
		return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0))
	})
}

// unpark makes a parked ln listen again. It needs SO_REUSEADDR, because
// connections accepted earlier hold the same port.
func unpark(ln *net.TCPListener) error {
	return onDescriptor(ln, func(fd int) error {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
		return os.NewSyscallError("listen", unix.Listen(fd, maxBacklog))
	})
}

// maxBacklog asks for the longest accept queue the system allows: listen(2) cuts
// it to net.core.somaxconn.
const maxBacklog = 1<<16 - 1

func onDescriptor(ln *net.TCPListener, op func(fd int) error) error {
	raw, err := ln.SyscallConn()
	if err != nil {
		return err
	}
	var opErr error
	if err := raw.Control(func(fd uintptr) { opErr = op(int(fd)) }); err != nil {
		return err
	}
	return opErr
}

// ephemeralRange returns the kernel's range of ephemeral ports (ip(7)).
func ephemeralRange() PortRange {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	var r PortRange
	if err == nil {
		_, err = fmt.Fscan(strings.NewReader(string(text)), &r.First, &r.Last)
	}
	if err != nil || r.First == 0 || r.Last < r.First {
		return PortRange{32768, 60999}
	}
	return r
}
