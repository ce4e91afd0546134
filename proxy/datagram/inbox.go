package datagram

import (
	"golang.org/x/sys/unix"
)

// batch is how many datagrams one system call receives or sends at most.
const batch = 64

// largest is room for every datagram, and for what the kernel joins of several.
const largest = 1 << 16

// inbox is buffers for receiving a batch. They belong to the Loop, not to flows, and
// only the pages ever used are in memory.
type inbox struct {
	msgs    []mmsghdr
	iovs    []unix.Iovec
	names   [][nameSize]byte
	control [][controlSize]byte
	data    []byte
	size    int // of a slot of data
}

// datagram is one received; it is valid until its slot is received into again.
type datagram struct {
	data []byte
	ancillary
}

// newInbox makes an inbox with so many slots of that size. One that is not named does
// not learn who sent what it receives, which spares the kernel the trouble.
func newInbox(slots, size int, named bool) *inbox {
	b := &inbox{
		msgs: make([]mmsghdr, slots), iovs: make([]unix.Iovec, slots),
		names: make([][nameSize]byte, slots), control: make([][controlSize]byte, slots),
		data: make([]byte, slots*size), size: size,
	}
	for i := range b.msgs {
		b.iovs[i].Base = &b.data[i*size]
		b.iovs[i].SetLen(size)
		b.msgs[i].Iov = &b.iovs[i]
		b.msgs[i].SetIovlen(1)
		if named {
			b.msgs[i].Name = &b.names[i][0]
		}
		b.msgs[i].Control = &b.control[i][0]
	}
	return b
}

// receive fills the slots from first on, most of them at the most, and returns how many
// were filled.
func (b *inbox) receive(fd, first, most, flags int) (int, error) {
	end := min(first+most, len(b.msgs))
	for i := first; i < end; i++ { // the kernel has written over these:
		if b.msgs[i].Name != nil {
			b.msgs[i].Namelen = nameSize
		}
		b.msgs[i].SetControllen(controlSize)
	}
	return recvmmsg(fd, b.msgs[first:end], flags)
}

func (b *inbox) at(i int) datagram {
	m := &b.msgs[i]
	return datagram{
		data:      b.data[i*b.size:][:m.size],
		ancillary: parseControl(b.control[i][:m.Controllen]),
	}
}

// sender returns who sent the datagram in slot i.
func (b *inbox) sender(i int) (peer, uint32, bool) {
	return parseName(b.names[i][:b.msgs[i].Namelen])
}
