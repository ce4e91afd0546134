package datagram

import (
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// receive takes a batch from a listening socket and passes it on, the datagrams of
// each flow in their order.
func (l *Loop) receive(n *Listener) {
	in := l.fromClients
	got, err := in.receive(n.fd, 0, batch, 0)
	if err != nil {
		if !errors.Is(err, unix.EAGAIN) {
			l.counts.receiveFail.Add(1)
		}
		return
	}
	var flows [batch]*flow
	for i := range got {
		flows[i] = l.flowOf(n, i)
	}
	for i, f := range flows[:got] {
		if f == nil {
			continue
		}
		for j := i; j < got; j++ {
			if flows[j] == f {
				l.toBackend.add(f, in.at(j))
				flows[j] = nil
			}
		}
		l.forward(f)
	}
}

// flowOf returns the open flow that the datagram in slot i belongs to, or nil if there
// is none to send it by now.
func (l *Loop) flowOf(n *Listener, i int) *flow {
	d := l.fromClients.at(i)
	client, scope, ok := l.fromClients.sender(i)
	if !ok {
		l.counts.unrouted.Add(1)
		return nil
	}
	k := key{clientIP: client.ip, local: d.local, scope: scope, clientPort: client.port}
	f := n.flows.find(k)
	if f == nil {
		f = l.arrive(n, k)
	}
	switch f.state {
	case open:
		l.touch(f)
		return f
	case asking:
		l.hold(f, d)
	case refused:
		l.counts.unrouted.Add(1)
	case unserved:
		l.counts.noSocket.Add(1)
	}
	return nil
}

// arrive makes a flow of a client that has none.
func (l *Loop) arrive(n *Listener, k key) *flow {
	f := &flow{key: k, listener: n, fd: -1, started: l.now, apart: l.cannotCut}
	route, err := n.router(Arrival{
		Client: withScope(f.client().addrPort(), k.scope),
		Local:  netip.AddrPortFrom(k.local.addr(), n.addr.Port()),
		flow:   f, loop: l,
	})
	if errors.Is(err, ErrLater) {
		l.add(f, asking, askingLimit)
		return f
	}
	l.settle(f, route, err)
	return f
}

// mostHeld is how many datagrams of a flow are kept until its Router has answered.
const mostHeld = 4

// hold keeps a copy of d until f's Router has answered.
func (l *Loop) hold(f *flow, d datagram) {
	if len(l.held[f]) == mostHeld {
		l.counts.unrouted.Add(1)
		return
	}
	d.data = slices.Clone(d.data)
	l.held[f] = append(l.held[f], d)
}

// answered settles a flow that was asking, if it still is.
func (l *Loop) answered(f *flow, ask func() (Route, error)) {
	if f.state != asking {
		return
	}
	held := l.held[f]
	delete(l.held, f)
	f.age.remove(f)
	f.listener.flows.remove(f)
	l.count(f, -1)
	route, err := ask()
	l.settle(f, route, err)
	if f.state != open {
		l.counts.unrouted.Add(int64(len(held)))
		return
	}
	for _, d := range held {
		l.toBackend.add(f, d)
	}
	if len(held) > 0 {
		l.forward(f)
	}
}

// settle does what a Router answered.
func (l *Loop) settle(f *flow, route Route, err error) {
	if err != nil {
		l.turnAway(f, refused)
		return
	}
	f.token = route.Token
	err = l.connect(f, route.Backend)
	if err != nil {
		cause := Internal
		if isUnreachable(err) {
			cause = Refused
		}
		l.tell(f, cause, err)
		l.turnAway(f, unserved)
		return
	}
	l.counts.opened.Add(1)
	l.add(f, open, route.Idle)
}

var errNoBackend = errors.New("a route leads nowhere")

// connect opens f's socket, to the endpoint given or another its owner names. When
// something is lacking, the least recently used flow gives its own.
func (l *Loop) connect(f *flow, backend netip.AddrPort) error {
	err := errNoBackend
	for try := 0; try < mostTries && backend.IsValid() && f.state != ended; try++ {
		if err = l.openSocket(f, backend); err == nil {
			return nil
		}
		switch {
		case isShortage(err) && l.evict():
		case isUnreachable(err):
			l.counts.failed.Add(1)
			backend = f.token.Failed(err)
		default:
			return err
		}
	}
	return err
}

// forward sends what is in toBackend, which is all f's.
func (l *Loop) forward(f *flow) {
	o := l.toBackend
	defer o.reset()
	if f.state != open { // evicted for the sake of another flow of this batch
		for i := range o.letters {
			l.counts.noSocket.Add(int64(o.letters[i].datagrams))
		}
		return
	}
	f.resent = 0
	msgs := o.seal()
	for at, tries := 0, 0; at < len(msgs); {
		n, err := sendmmsg(int(f.fd), msgs[at:])
		l.delivered(o, at, at+n)
		if at += n; n > 0 {
			f.lastSize = uint16(o.letters[at-1].last)
		}
		var quoted [][]byte
		if isUnreachable(err) {
			quoted, _ = l.readErrors(f)
		} else if err == nil && at < len(msgs) { // the call ended early and kept the error to itself
			quoted, err = l.readErrors(f)
		}
		switch {
		case err == nil:
		case isUnreachable(err) && tries < mostTries:
			tries++ // the error is an earlier datagram's; this one was not sent
			if !l.fail(f, err, quoted) {
				l.dropped(err, len(msgs)-at)
				return
			}
		default:
			l.undeliverable(o, int(f.fd), at, err)
			at++
		}
	}
}
