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
	got, err := in.receive(int(f.fd), first, 0)
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
	l.replying = f.listener
	l.touch(f)
	for i := first; i < first+got; i++ {
		l.toClients.add(f, in.at(i))
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
