package relay

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What both engines ask the kernel about a connection.

// tcpClose is TCP_CLOSE of <netinet/tcp.h>: the connection was reset, timed out,
// or has been closed by both sides.
const tcpClose = 7

// deliveryLimit is how long the other side of a reset may take nothing of what was
// received before the reset, until it is reset too. Whether it has taken all is looked at
// in pauses that grow.
const (
	deliveryLimit          = 5 * time.Second
	firstLook, longestLook = time.Millisecond, 50 * time.Millisecond
)

// errReset stands for a reset whose error no system call has told us.
var errReset = error(syscall.ECONNRESET)

// tcpInfo returns the kernel's view of a connection (TCP_INFO, tcp(7)).
func tcpInfo(fd int32) (*unix.TCPInfo, error) {
	return unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
}

// tcpState returns the TCP state, or 0 when it cannot be told.
func tcpState(fd int32) uint8 {
	info, err := tcpInfo(fd)
	if err != nil {
		return 0
	}
	return info.State
}

// acknowledged returns how many bytes the peer has acknowledged since the beginning.
func acknowledged(fd int32) uint64 {
	info, err := tcpInfo(fd)
	if err != nil {
		return 0
	}
	return info.Bytes_acked
}

// unsent returns how many written bytes the peer has not acknowledged (SIOCOUTQ,
// tcp(7)).
func unsent(fd int32) int {
	n, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
	if err != nil {
		return 0
	}
	return n
}

// unread returns how many received bytes have not been read (SIOCINQ, tcp(7)).
func unread(fd int32) int {
	n, err := unix.IoctlGetInt(int(fd), unix.SIOCINQ)
	if err != nil {
		return 0
	}
	return n
}

// readable reports whether a socket has something to give: of one that listens, a client.
func readable(fd int32) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: fd, Events: unix.POLLIN}}, 0)
	return n > 0 || err != nil
}

// unanswered reports whether the peer has not acknowledged anything for longer than
// limit although it was asked to, by data or by probes of its closed window: TCP
// keepalive does not ask while data waits. A live peer that reads nothing answers.
func unanswered(fd int32, limit time.Duration) bool {
	if limit <= 0 {
		return false
	}
	info, err := tcpInfo(fd)
	return err == nil && info.Probes+info.Retransmits > 0 && time.Duration(info.Last_ack_recv)*time.Millisecond > limit
}

// room returns how many bytes a socket takes before its writer has to wait, at a guess: what
// the buffer is said to hold includes what the kernel itself needs (SO_SNDBUF, socket(7)).
func room(fd int32) int {
	size, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return 0
	}
	return (size/2 - unsent(fd)) / 2
}
