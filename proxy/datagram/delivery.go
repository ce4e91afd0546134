package datagram

import (
	"errors"

	"golang.org/x/sys/unix"
)

// delivered counts the letters from first to before end, which all belong to one
// listener.
func (l *Loop) delivered(o *outbox, first, end int) {
	if first == end {
		return
	}
	var datagrams, bytes int64
	for i := first; i < end; i++ {
		letter := &o.letters[i]
		d, b := int64(letter.datagrams), int64(letter.bytes)
		datagrams, bytes = datagrams+d, bytes+b
		if o.replies {
			letter.flow.downs, letter.flow.down = letter.flow.downs+d, letter.flow.down+b
		} else {
			letter.flow.ups, letter.flow.up = letter.flow.ups+d, letter.flow.up+b
		}
	}
	t := &o.letters[first].flow.listener.traffic
	if o.replies {
		t.datagramsDown.Add(datagrams)
		t.down.Add(bytes)
	} else {
		t.datagramsUp.Add(datagrams)
		t.up.Add(bytes)
	}
}

// undeliverable deals with the letter i that could not be sent: if that may be
// because its datagrams were joined, they are sent one by one; else they are dropped,
// as a network would drop them.
func (l *Loop) undeliverable(o *outbox, fd, i int, err error) {
	if letter := &o.letters[i]; !letter.joined || !cannotCut(err) {
		l.dropped(err, letter.datagrams)
		return
	}
	for _, err := range o.apart(fd, i) {
		l.dropped(err, 1)
	}
	l.delivered(o, i, i+1)
}

// dropped counts datagrams that could not be sent.
func (l *Loop) dropped(err error, datagrams int) {
	count := &l.counts.unsendable
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS):
		count = &l.counts.full
	case errors.Is(err, unix.EPERM):
		count = &l.counts.denied
	}
	count.Add(int64(datagrams))
}
