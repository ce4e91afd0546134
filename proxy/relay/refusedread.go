package relay

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// copyToEnd is io.Copy that goes on after reads refused by the runtime.
//
// When a reset arrives or a connection times out, the kernel shows the error a
// moment before it ends the connection. A poll in that moment finds EPOLLERR and
// nothing else, and the runtime takes this for a descriptor that cannot be polled: it
// refuses to read ("not pollable") until the kernel's next event. That event is
// the end itself, so trying again finds what was received before the reset, and
// then the reset. A refused read has taken nothing from the socket.
//
// Should the next event never come, the sweeper finds the error, gives the pair up,
// and the deadline for delivery ends this.
func copyToEnd(dst, src *net.TCPConn) (int64, error) {
	const first, longest = time.Millisecond, 50 * time.Millisecond
	var sum int64
	for pause := first; ; pause = min(2*pause, longest) {
		n, err := io.Copy(dst, src)
		sum += n
		if err == nil {
			n, err = copyRest(dst, src)
			sum += n
		}
		if !refusedRead(err) {
			return sum, err
		}
		time.Sleep(pause)
	}
}

// copyRest copies what io.Copy has left behind. It splices, and splice(2) takes an urgent
// byte (tcp(7)) for the end if a FIN has come as well.
func copyRest(dst, src *net.TCPConn) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, 4<<10))
}

// refusedRead reports whether err is the runtime's alone: it has no name outside of
// the standard library, but all others are the kernel's, a deadline's or a closed
// connection's.
func refusedRead(err error) bool {
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
		return false
	}
	_, kernels := errors.AsType[syscall.Errno](err)
	return !kernels
}
