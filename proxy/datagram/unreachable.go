package datagram

import (
	"errors"

	"golang.org/x/sys/unix"
)

// When an endpoint's machine says by ICMP that a datagram could not be delivered, the
// kernel reports it at the next call on the flow's socket, whatever that is for: an
// error there says nothing of the datagram at hand, which was not sent. With IP_RECVERR
// (ip(7)) it also keeps what the ICMP message quotes of the one that was not delivered.
// A router quotes as much as fits 576 bytes (RFC 1812, 4.3.2.3), which for a question
// to a DNS server is all of it. So a small datagram that met a closed port comes back
// to us, and no copy has to be kept of any.

const (
	mostTries     = 4 // endpoints for one datagram
	mostQuoted    = 8
	longestQuoted = 2048
)

// isUnreachable reports whether err says that the endpoint cannot be reached.
func isUnreachable(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EHOSTUNREACH) ||
		errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTDOWN) || errors.Is(err, unix.ENOPROTOOPT)
}

// hearErrors takes the errors of f's socket and reports whether f is still open.
func (l *Loop) hearErrors(f *flow) bool {
	quoted, err := l.readErrors(f)
	if err == nil {
		return true
	}
	return l.fail(f, err, quoted)
}

// readErrors empties the error queue of f's socket. It returns the quoted datagrams that
// are whole, valid until the next call, and the last error that says that the endpoint
// cannot be reached.
func (l *Loop) readErrors(f *flow) (quoted [][]byte, last error) {
	in := l.fromErrors
	for range mostTries { // a flood of errors is to hold up nobody
		got, err := in.receive(int(f.fd), 0, mostQuoted, unix.MSG_ERRQUEUE)
		if err != nil {
			break
		}
		quoted = quoted[:0]
		for i := range got {
			d := in.at(i)
			if errno := unix.Errno(d.errno); isUnreachable(errno) {
				last = errno
				// How much is missing is not told, but only the last one's size is
				// remembered, so any other may be cut.
				if len(d.data) == int(f.lastSize) {
					quoted = append(quoted, d.data)
				}
			}
		}
		if got < mostQuoted {
			break
		}
	}
	if errno, err := unix.GetsockoptInt(int(f.fd), unix.SOL_SOCKET, unix.SO_ERROR); last == nil && err == nil && isUnreachable(unix.Errno(errno)) {
		last = unix.Errno(errno) // an error without a quotation
	}
	return quoted, last
}

// fail tells f's owner that the endpoint cannot be reached, leads f to the one its
// owner names, and sends that what came back. It reports whether f is still open.
func (l *Loop) fail(f *flow, err error, quoted [][]byte) bool {
	l.counts.failed.Add(1)
	next := f.token.Failed(err)
	if !next.IsValid() {
		l.end(f, Refused, err)
		return false
	}
	if peerOf(next) == f.backend {
		return true // to send it there again could go on for ever
	}
	l.touch(f)
	l.closeSocket(f) // with whatever the endpoint it leaves may still say
	if err := l.connect(f, next); err != nil {
		cause := Internal
		if isUnreachable(err) {
			cause = Refused
		}
		l.end(f, cause, err)
		return false
	}
	l.resend(f, quoted)
	return true
}

// resend sends what came back from another endpoint. A datagram that meets one closed
// port after the other is given up after some.
func (l *Loop) resend(f *flow, quoted [][]byte) {
	if f.resent == mostTries {
		return
	}
	f.resent++
	for _, data := range quoted {
		if unix.Send(int(f.fd), data, unix.MSG_DONTWAIT) == nil {
			l.counts.resent.Add(1)
		}
	}
}
