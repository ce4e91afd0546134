package relay

import (
	"encoding/binary"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of the loops. None of them blocks, so they are raw: the scheduler is
// not told, which would cost as much as the shorter of them. All of the package's unsafe
// code is here.

// receive reads from a socket (recv(2)). At the end of the stream it returns 0.
func receive(fd int32, b []byte) (int, unix.Errno) { return receiveBy(fd, b, 0) }

// peek is receive that leaves in the socket what it reads.
func peek(fd int32, b []byte) (int, unix.Errno) { return receiveBy(fd, b, unix.MSG_PEEK) }

func receiveBy(fd int32, b []byte, flags uintptr) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT|flags, 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// send writes to a socket (send(2)) as much as it takes, without SIGPIPE.
func send(fd int32, b []byte) (int, unix.Errno) { return sendBy(fd, b, 0) }

// sendBefore is send of what is followed by more at once, or is not.
func sendBefore(fd int32, b []byte, more bool) (int, unix.Errno) {
	if more {
		return sendBy(fd, b, unix.MSG_MORE)
	}
	return sendBy(fd, b, 0)
}

func sendBy(fd int32, b []byte, flags uintptr) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL|flags, 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// splice moves at most so many bytes between a pipe and a socket (splice(2)). From a
// socket at the end of its stream it returns 0.
func splice(from, to int32, most int) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(most), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// poll returns how many of events have happened, without waiting (epoll_wait(2)).
func poll(epoll int, events []unix.EpollEvent) int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
	if errno != 0 { // EINTR; nothing else can befall us
		return 0
	}
	return int(n)
}

// sockaddr is room for an address of either family. One is kept by each loop, so that no
// call has to allocate it.
type sockaddr = unix.RawSockaddrInet6

// closeSocket closes a descriptor.
func closeSocket(fd int32) {
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
}

// shutdown sends FIN after all that was written (shutdown(2), SHUT_WR).
func shutdown(fd int32) {
	_, _, _ = unix.RawSyscall(unix.SYS_SHUTDOWN, uintptr(fd), unix.SHUT_WR, 0)
}

// setOption sets an option of a socket to a number (setsockopt(2)).
func setOption(fd int32, level, option int, value int32) error {
	return setRaw(fd, level, option, unsafe.Pointer(&value), unsafe.Sizeof(value))
}

// setLinger sets SO_LINGER (socket(7)).
func setLinger(fd int32, linger unix.Linger) error {
	return setRaw(fd, unix.SOL_SOCKET, unix.SO_LINGER, unsafe.Pointer(&linger), unsafe.Sizeof(linger))
}

func setRaw(fd int32, level, option int, value unsafe.Pointer, size uintptr) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option), uintptr(value), size, 0)
	if errno != 0 {
		return os.NewSyscallError("setsockopt", errno)
	}
	return nil
}

// watchEdges adds a descriptor to an epoll instance (epoll_ctl(2)).
func watchEdges(epoll int, fd int32, events uint32, mark int32) error {
	event := unix.EpollEvent{Events: events | unix.EPOLLET, Fd: fd, Pad: mark}
	_, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epoll), unix.EPOLL_CTL_ADD, uintptr(fd), uintptr(unsafe.Pointer(&event)), 0, 0)
	if errno != 0 {
		return os.NewSyscallError("epoll_ctl", errno)
	}
	return nil
}

// accept takes a connection from a listening socket (accept4(2)).
func accept(fd int32, room *sockaddr) (int32, netip.AddrPort, unix.Errno) {
	size := uint32(unix.SizeofSockaddrInet6)
	n, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), uintptr(unsafe.Pointer(room)), uintptr(unsafe.Pointer(&size)), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	if errno != 0 {
		return -1, netip.AddrPort{}, errno
	}
	return int32(n), addrPortOf(room), 0
}

// localAddr returns the address a socket is bound to (getsockname(2)).
func localAddr(fd int32, room *sockaddr) netip.AddrPort {
	size := uint32(unix.SizeofSockaddrInet6)
	if _, _, errno := unix.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(room)), uintptr(unsafe.Pointer(&size))); errno != 0 {
		return netip.AddrPort{}
	}
	return addrPortOf(room)
}

// LocalAddr returns the address that a socket is bound to, the zero value if it cannot be
// told. An IPv4-mapped one is returned as IPv4.
func LocalAddr(fd int) netip.AddrPort {
	var room sockaddr
	return localAddr(int32(fd), &room)
}

// connect begins to connect a socket (connect(2)). EINPROGRESS is no failure.
func connect(fd int32, to netip.AddrPort, room *sockaddr) unix.Errno {
	size := uintptr(unix.SizeofSockaddrInet6)
	*room = sockaddr{Family: unix.AF_INET6, Addr: to.Addr().As16()}
	if to.Addr().Is4() {
		size = unix.SizeofSockaddrInet4
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(room))
		*four = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: to.Addr().As4()}
	}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&room.Port))[:], to.Port()) // at one place in both
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(room)), size)
	if errno == unix.EINPROGRESS {
		return 0
	}
	return errno
}

// addrPortOf reads an address as the kernel wrote it, an IPv4-mapped one as IPv4.
func addrPortOf(room *sockaddr) netip.AddrPort {
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&room.Port))[:])
	if room.Family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(room)).Addr), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(room.Addr).Unmap(), port)
}
