package proxy

import (
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// parkSocket makes the kernel refuse connections to a listening socket's port, before
// any handshake, while the socket keeps the port: shutdown(2) for reading takes it back
// to the state it had between bind and listen. Connections that were accepted
// live on; those waiting to be accepted are reset.
//
// The port stays bound only because it was asked for by number: a port the kernel
// chose is given up here (SOCK_BINDPORT_LOCK in the kernel's inet_bind). Without
// SO_REUSEADDR no other socket can take it meanwhile.
func parkSocket(fd int) error {
	if err := unix.Shutdown(fd, unix.SHUT_RD); err != nil {
		return os.NewSyscallError("shutdown", err)
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0))
}

// unparkSocket makes a parked socket listen again. It needs SO_REUSEADDR, because
// connections accepted earlier hold the same port.
func unparkSocket(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	return os.NewSyscallError("listen", unix.Listen(fd, maxBacklog))
}

// park is parkSocket for a socket that no engine has yet.
func park(ln *net.TCPListener) error {
	raw, err := ln.SyscallConn()
	if err != nil {
		return err
	}
	var opErr error
	if err := raw.Control(func(fd uintptr) { opErr = parkSocket(int(fd)) }); err != nil {
		return err
	}
	return opErr
}

// maxBacklog asks for the longest accept queue the system allows: listen(2) cuts
// it to net.core.somaxconn.
const maxBacklog = 1<<16 - 1

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
