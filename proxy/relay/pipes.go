package relay

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// pipe carries the payload of a direction through splice(2), which moves the kernel's
// references to pages and not bytes.
type pipe struct {
	in, out int32 // written to, read from
	filled  int   // bytes that are in it
}

const (
	// pipeSize is what a pipe is asked to hold, 256 pages of 4 KiB. The kernel gives less
	// to a user who has many (pipe-user-pages-soft, pipe(7)).
	pipeSize = 1 << 20
	// leastFilled is how many bytes may be put into a pipe at once whatever the reader does, and
	// so how many one that hangs leaves there.
	leastFilled = 128 << 10
	// sparePipes is how many empty pipes a loop keeps.
	sparePipes = 8
	// mostPipes is how many pipes a loop has in use; past it, bytes are copied.
	mostPipes = 512
)

// pipes are a loop's.
type pipes struct {
	spare []*pipe
	out   int           // given and not given back
	open  *atomic.Int64 // of the whole engine
}

// get returns an empty pipe, or nil if none can be had.
func (s *pipes) get() *pipe {
	if n := len(s.spare); n > 0 {
		p := s.spare[n-1]
		s.spare = s.spare[:n-1]
		s.out++
		return p
	}
	if s.out >= mostPipes {
		return nil
	}
	var fds [2]int
	if unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC) != nil {
		return nil // too few descriptors: copying does without
	}
	s.open.Add(1)
	p := &pipe{in: int32(fds[1]), out: int32(fds[0])}
	if scarce(max(fds[0], fds[1])) {
		s.close(p)
		return nil
	}
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize)
	s.out++
	return p
}

// scarce reports whether a descriptor is of the last quarter of what the process may have.
// As the kernel gives the lowest number there is, the others are taken; these are for whoever
// cannot do without.
func scarce(fd int) bool {
	var limit unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	return err == nil && uint64(fd) >= limit.Cur-limit.Cur/4
}

// put takes a pipe back. One that is not empty is of no use to anybody else.
func (s *pipes) put(p *pipe) {
	s.out--
	if p.filled > 0 || len(s.spare) >= sparePipes {
		s.close(p)
		return
	}
	s.spare = append(s.spare, p)
}

// drop closes the spare pipes.
func (s *pipes) drop() {
	for _, p := range s.spare {
		s.close(p)
	}
	s.spare = s.spare[:0]
}

func (s *pipes) close(p *pipe) {
	s.open.Add(-1)
	_ = unix.Close(int(p.in))
	_ = unix.Close(int(p.out))
}
