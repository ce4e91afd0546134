package datagram

import (
	"errors"

	"golang.org/x/sys/unix"
)

// hear serves what epoll said about f's socket.
func (l *Loop) hear(f *flow, events uint32) {
	if events&unix.EPOLLERR != 0 && !l.hearErrors(f) {
		return
	}
	if events&unix.EPOLLIN == 0 {
		return
	}
	// Replies of all flows of a listener leave together, when the turn ends or room
	// gets short.
	if l.replying != f.listener || l.toClients.parts > batch-fewestSlots {
		l.sendReplies()
	}
	in, first := l.fromBackends, l.toClients.parts
	most := max(int(f.expected), 1)
	got, err := in.receive(int(f.fd), first, most, 0)
	switch {
	case err == nil:
	case isUnreachable(err):
		quoted, _ := l.readErrors(f)
		l.fail(f, err, quoted)
		return
	default:
		if !errors.Is(err, unix.EAGAIN) {
			l.counts.receiveFail.Add(1)
		}
		return
	}
	f.expect(most, got)
	l.replying = f.listener
	l.touch(f)
	for i := first; i < first+got; i++ {
		l.toClients.add(f, in.at(i))
	}
}

// expect notes that of most datagrams that were asked for got were there. Most flows
// have one at a time, and to look for another costs as much as half of a datagram; what is
// left, epoll reports again. Those that have many are soon asked for many.
func (f *flow) expect(most, got int) {
	if got == most {
		f.expected = uint8(min(2*most, batch))
	} else {
		f.expected = uint8(max(got, most/2))
	}
}

// fewestSlots is how much of a batch must be free to receive into.
const fewestSlots = batch / 4

// sendReplies sends what is in toClients, from the address that each client asked.
func (l *Loop) sendReplies() {
	o, n := l.toClients, l.replying
	if n == nil {
		return
	}
	msgs := o.seal()
	for at := 0; at < len(msgs); {
		sent, err := sendmmsg(n.fd, msgs[at:])
		l.delivered(o, at, at+sent)
		if at += sent; err != nil {
			l.undeliverable(o, n.fd, at, err)
			at++
		}
	}
	o.reset()
	l.replying = nil
}
