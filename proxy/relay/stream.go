package relay

import "golang.org/x/sys/unix"

// stream is one direction of a pair: what was read from one side and not yet written to
// the other. It never reads on while it has something, so the sender waits for the reader.
type stream struct {
	held  []byte // in memory
	at    int    // of held, what is written already
	pipe  *pipe  // in the kernel; nil unless bulk data passes
	moved int64  // bytes written, altogether; below 0 until a preamble is written
	bulk  bool
	run   uint8 // reads in a row that speak for changing bulk
}

const (
	// turnBytes is what a direction may move before others get their turn: a quarter of a
	// millisecond's worth.
	turnBytes = 1 << 20
	// manyFull is how many full buffers in a row make a direction bulk, and manyThin how
	// many small reads end that.
	manyFull, manyThin = 2, 8
)

func (s *stream) empty() bool { return s.at == len(s.held) && (s.pipe == nil || s.pipe.filled == 0) }

// pump moves bytes from src to dst until there is nothing to read, no room to write, or
// the turn is over: then it reports that there is more to do. What ends src, it passes on.
func (p *pair) pump(src, dst *end, s *stream) (more bool) {
	for budget := turnBytes; ; {
		if !s.empty() {
			if !dst.writable {
				return false
			}
			n, errno := s.write(p.loop, dst)
			budget -= n
			p.moved(s, n)
			if errno != 0 {
				if errno != unix.EAGAIN {
					p.failed(dst, errno)
				}
				return false
			}
			continue
		}
		switch {
		case src.finished:
			s.drop(p.loop)
			p.passEnd(dst)
			return false
		case !src.readable || !dst.writable:
			s.drop(p.loop) // the pipe has run dry
			return false
		case budget <= 0:
			return true
		}
		n, errno := s.read(p.loop, src, dst, budget)
		budget -= n
		p.moved(s, n)
		switch {
		case errno == unix.EAGAIN:
			p.exhausted(src)
		case errno != 0:
			p.failed(src, errno)
			if p.state != delivering || !src.finished {
				return false
			}
		}
	}
}

// read takes what src has. Small data is written to dst at once; n is how much of it dst
// has taken. An end of src is noted there.
func (s *stream) read(l *loop, src, dst *end, budget int) (n int, errno unix.Errno) {
	if s.bulk && s.pipe == nil {
		s.pipe = l.pipes.get() // nil: there is none, so copy
	}
	if s.bulk && s.pipe != nil {
		return 0, s.fill(src, min(max(room(dst.fd), leastFilled), budget))
	}
	got, errno := receive(src.fd, l.scratch)
	switch {
	case errno != 0:
		return 0, errno
	case got == 0:
		src.finished = true
		return 0, 0
	case got < len(l.scratch):
		s.run = 0
		src.readable = src.exhaust // a socket with more to give would have filled it (epoll(7))
	default:
		s.thick()
	}
	n, errno = send(dst.fd, l.scratch[:got])
	if errno != 0 {
		n = 0
	}
	if n < got {
		s.held, s.at = l.takeBuffer()[:got], n
	}
	if errno == unix.EAGAIN || errno == 0 && n < got {
		dst.writable = false // the kernel tells when there is room again
	}
	return n, 0 // an error is met again by the next write
}

// thick and thin count reads that speak for and against splicing.
func (s *stream) thick() {
	if s.bulk {
		s.run = 0
	} else if s.run++; s.run >= manyFull {
		s.bulk, s.run = true, 0
	}
}

func (s *stream) thin() {
	if s.run++; s.run >= manyThin {
		s.bulk, s.run = false, 0
	}
}

// fill moves what src has into the empty pipe, most bytes at the most: what dst has room
// for. The more at once, the less often dst's peer has to be woken for it, which on some
// machines doubles the cost. Splicing never gets past an urgent byte
// (tcp(7)): there it says that nothing has come, or that the end has. So copying is to say
// whether that is true.
func (s *stream) fill(src *end, most int) unix.Errno {
	n, errno := splice(src.fd, s.pipe.in, most)
	switch {
	case errno == unix.EAGAIN && src.exhaust, errno == 0 && n == 0:
		s.bulk, s.run = false, 0
		return 0
	case errno != 0:
		return errno
	case n < bufferSize:
		s.thin()
	default:
		s.thick()
	}
	s.pipe.filled = n
	return 0
}

// write gives dst what is in hand.
func (s *stream) write(l *loop, dst *end) (n int, errno unix.Errno) {
	if s.at < len(s.held) {
		n, errno = send(dst.fd, s.held[s.at:])
	} else {
		n, errno = splice(s.pipe.out, dst.fd, s.pipe.filled)
	}
	if errno != 0 {
		dst.writable = dst.writable && errno != unix.EAGAIN
		return 0, errno
	}
	if s.at < len(s.held) {
		if s.at += n; s.at == len(s.held) {
			l.putBuffer(s.held)
			s.held, s.at = nil, 0
		}
		return n, 0
	}
	s.pipe.filled -= n
	return n, 0
}

// drop forgets what is in hand, and gives back what it was in.
func (s *stream) drop(l *loop) {
	if s.held != nil {
		l.putBuffer(s.held)
		s.held, s.at = nil, 0
	}
	if s.pipe != nil {
		l.pipes.put(s.pipe)
		s.pipe = nil
		l.needHousework()
	}
}

// moved notes that a direction has moved n bytes.
func (p *pair) moved(s *stream, n int) {
	if n > 0 {
		s.moved += int64(n)
		p.used = p.loop.now
		p.loop.written.add(p)
	}
}
