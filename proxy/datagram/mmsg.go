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
// a good part of what they cost. For one message recvmsg(2) has less to do.
func recvmmsg(fd int, msgs []mmsghdr, flags int) (int, error) {
	if len(msgs) > 1 {
		return mmsg(unix.SYS_RECVMMSG, fd, msgs, flags)
	}
	n, err := rawCall(unix.SYS_RECVMSG, fd, unsafe.Pointer(&msgs[0].Msghdr), flags|unix.MSG_DONTWAIT, 0)
	if err != nil {
		return 0, err
	}
	msgs[0].size = uint32(n)
	return 1, nil
}

// sendmmsg sends without waiting. An error is that of the first message; those before
// one that fails are sent, and counted. For one message sendmsg(2) has less to do, and
// send(2) the least.
func sendmmsg(fd int, msgs []mmsghdr) (int, error) {
	if len(msgs) > 1 {
		return mmsg(unix.SYS_SENDMMSG, fd, msgs, 0)
	}
	var err error
	if m := &msgs[0]; m.Name == nil && m.Control == nil && m.Iovlen == 1 {
		_, err = rawCall(unix.SYS_SENDTO, fd, unsafe.Pointer(m.Iov.Base), int(m.Iov.Len), unix.MSG_DONTWAIT)
	} else {
		_, err = rawCall(unix.SYS_SENDMSG, fd, unsafe.Pointer(&m.Msghdr), unix.MSG_DONTWAIT, 0)
	}
	if err != nil {
		return 0, err
	}
	return 1, nil
}

func mmsg(call uintptr, fd int, msgs []mmsghdr, flags int) (int, error) {
	return rawCall(call, fd, unsafe.Pointer(unsafe.SliceData(msgs)), len(msgs), flags|unix.MSG_DONTWAIT)
}

// rawCall makes a system call on fd that does not block.
func rawCall(call uintptr, fd int, at unsafe.Pointer, third, fourth int) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(call, uintptr(fd), uintptr(at), uintptr(third), uintptr(fourth), 0, 0)
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
