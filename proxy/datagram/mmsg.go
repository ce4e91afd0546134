package datagram

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr of recvmmsg(2). Neither package unix nor the standard
// library has it, and golang.org/x/net, which has, wants a net.Conn for every socket:
// some hundred bytes and a registration with Go's poller, which would wake for
// every datagram of ours.
type mmsghdr struct {
	unix.Msghdr
	size uint32 // what was received or sent
}

// recvmmsg receives without waiting. It is a raw system call, of which the Go
// scheduler does not know: these calls do not block, and the scheduler's bookkeeping is
// a good part of what they cost.
func recvmmsg(fd int, msgs []mmsghdr, flags int) (int, error) {
	return mmsg(unix.SYS_RECVMMSG, fd, msgs, flags)
}

// sendmmsg sends without waiting. An error is that of the first message; those before
// one that fails are sent, and counted.
func sendmmsg(fd int, msgs []mmsghdr) (int, error) {
	return mmsg(unix.SYS_SENDMMSG, fd, msgs, 0)
}

func mmsg(call uintptr, fd int, msgs []mmsghdr, flags int) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(call, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(msgs))), uintptr(len(msgs)), uintptr(flags|unix.MSG_DONTWAIT), 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// narrow makes iov the size bytes that begin at from.
func narrow(iov *unix.Iovec, from, size int) {
	iov.Base = (*byte)(unsafe.Add(unsafe.Pointer(iov.Base), from))
	iov.SetLen(size)
}
