package datagram

import (
	"errors"

	"golang.org/x/sys/unix"
)

// What the kernel cuts into datagrams again must fit one packet and have no more than
// so many parts (UDP_MAX_SEGMENTS in the kernel's udp.h, at its smallest).
const (
	mostJoined     = 64
	longestJoined  = 65_000
	shortestJoined = 1 // an empty datagram would vanish
)

// outbox is a batch of datagrams on their way out through one socket. Datagrams of one
// flow that follow each other and are of one size leave as one message, which the
// kernel cuts again (UDP_SEGMENT, udp(7)): one way through the network stack for all.
type outbox struct {
	replies bool // to clients, from the listening socket
	msgs    []mmsghdr
	iovs    []unix.Iovec
	names   [][nameSize]byte
	control [][controlSize]byte
	letters []letter
	parts   int // of iovs
}

// letter is one message of an outbox.
type letter struct {
	flow        *flow
	iovs        []unix.Iovec
	tos         uint8
	segment     int // the size of its datagrams, but for the last
	datagrams   int
	bytes, last int // altogether; in the last datagram
	joined      bool
}

func newOutbox(replies bool) *outbox {
	return &outbox{
		replies: replies,
		msgs:    make([]mmsghdr, batch), iovs: make([]unix.Iovec, batch),
		names: make([][nameSize]byte, batch), control: make([][controlSize]byte, batch),
		letters: make([]letter, 0, batch),
	}
}

func (o *outbox) reset() { o.letters, o.parts = o.letters[:0], 0 }

// add puts a datagram of f at the end. There is room for a batch.
func (o *outbox) add(f *flow, d datagram) {
	iov := o.iovs[o.parts : o.parts+1]
	o.parts++
	if len(d.data) > 0 {
		iov[0].Base = &d.data[0]
	} else {
		iov[0].Base = nil
	}
	iov[0].SetLen(len(d.data))
	if n := len(o.letters); n > 0 && o.letters[n-1].join(f, d) {
		l := &o.letters[n-1]
		l.iovs = l.iovs[:len(l.iovs)+1]
		return
	}
	l := letter{flow: f, iovs: iov[:1:cap(iov)], tos: d.tos, segment: len(d.data), datagrams: 1, bytes: len(d.data), last: len(d.data)}
	if d.segment > 0 && d.segment < len(d.data) {
		l.segment, l.joined = d.segment, true
		l.datagrams = (len(d.data) + d.segment - 1) / d.segment
		l.last = len(d.data) - (l.datagrams-1)*d.segment
	}
	o.letters = append(o.letters, l)
}

// join takes d into l if the kernel can cut it off again.
func (l *letter) join(f *flow, d datagram) bool {
	size := len(d.data)
	if l.flow != f || f.apart || l.tos != d.tos || d.segment > 0 || l.joined && len(l.iovs) == 1 ||
		size < shortestJoined || l.last != l.segment || size > l.segment ||
		l.datagrams == mostJoined || l.bytes+size > longestJoined {
		return false
	}
	l.joined = true
	l.datagrams++
	l.bytes += size
	l.last = size
	return true
}

// seal writes the headers of the messages.
func (o *outbox) seal() []mmsghdr {
	for i := range o.letters {
		l, m := &o.letters[i], &o.msgs[i]
		m.Iov = &l.iovs[0]
		m.SetIovlen(len(l.iovs))
		o.head(i, l.joined)
	}
	return o.msgs[:len(o.letters)]
}

// head writes the destination and the control messages of message i.
func (o *outbox) head(i int, cut bool) {
	l, m := &o.letters[i], &o.msgs[i]
	f := l.flow
	control := o.control[i][:0]
	is4 := f.backend.ip.addr().Is4()
	m.Name, m.Namelen = nil, 0
	if o.replies {
		name := appendName(o.names[i][:0], f.client(), f.scope)
		m.Name, m.Namelen = &name[0], uint32(len(name))
		is4 = f.local.addr().Is4()
		control = appendLocal(control, f.local)
	}
	if l.tos != 0 {
		control = appendTOS(control, is4, l.tos)
	}
	if cut {
		control = appendSegment(control, l.segment)
	}
	m.Control = nil
	if len(control) > 0 {
		m.Control = &control[0]
	}
	m.SetControllen(len(control))
}

// apart sends the datagrams of message i one by one, which is what remains when the
// kernel cannot cut it: they are longer than a packet on their way, or a device cannot
// have it. It returns the errors of those that could not be sent, and leaves in the
// letter what was.
func (o *outbox) apart(fd, i int) (failed []error) {
	l, m := &o.letters[i], o.msgs[i:i+1]
	l.flow.apart = true
	o.head(i, false)
	var iov [1]unix.Iovec
	m[0].Iov = &iov[0]
	m[0].SetIovlen(1)
	l.datagrams, l.bytes = 0, 0
	for _, part := range l.iovs {
		for at := 0; at < int(part.Len); at += l.segment {
			size := min(l.segment, int(part.Len)-at)
			iov[0] = part
			narrow(&iov[0], at, size)
			if _, err := sendmmsg(fd, m); err != nil {
				failed = append(failed, err)
				continue
			}
			l.datagrams++
			l.bytes += size
		}
	}
	return failed
}

// canCut reports whether the kernel knows UDP_SEGMENT (Linux 4.18). One that does not
// would take no notice of it and send what was joined as one datagram.
func canCut() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	_, err = unix.GetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT)
	return err == nil
}

// cannotCut says whether err may mean that only joined datagrams cannot be sent.
func cannotCut(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EMSGSIZE) || errors.Is(err, unix.EIO) || errors.Is(err, unix.EOPNOTSUPP)
}
