package datagram_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/kube-splice/kube-splice/proxy/datagram"
)

func TestRouterIsToldWhoAsksAndWhere(t *testing.T) {
	for name, family := range families {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, family.listen, datagram.Config{}, echo(t, family.endpoint))
			client := dial(t, r.at(family.addresses[1]))
			ask(t, client, "x", "x")
			a := r.arrivals()[0]
			if a.Client != addrPort(client) || a.Local != r.at(family.addresses[1]).AddrPort() {
				t.Errorf("a datagram from %v to %v was said to be from %v to %v", addrPort(client), r.at(family.addresses[1]), a.Client, a.Local)
			}
		})
	}
}

func TestRouterMayAnswerLater(t *testing.T) {
	e := echo(t, "127.0.0.1:0")
	r := newRig(t, anywhere, datagram.Config{}, e)
	r.set(func(o *owner) { o.err = datagram.ErrLater })
	client, quick := dial(t, r.at("127.0.0.1")), dial(t, r.at("127.0.0.1"))
	for i := range 3 {
		send(t, client, fmt.Sprint(i))
	}
	eventually(t, "the router is asked", func() bool { return len(r.arrivals()) == 1 })
	r.set(func(o *owner) { o.err = nil })
	ask(t, quick, "others do not wait", "others do not wait")
	a := r.arrivals()[0]
	a.Answer(func() (datagram.Route, error) { return r.route(a) })
	for i := range 3 {
		want(t, client, fmt.Sprint(i))
	}
	a.Answer(func() (datagram.Route, error) { // too often; the flow is open
		t.Error("asked again")
		return r.route(a)
	})
	ask(t, client, "on", "on")
}

func TestAnswerThatComesTooLateIsNotAsked(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	r.set(func(o *owner) { o.err = datagram.ErrLater })
	send(t, dial(t, r.at("127.0.0.1")), "x")
	eventually(t, "the router is asked", func() bool { return len(r.arrivals()) == 1 })
	check(t, r.listener.Close())
	r.arrivals()[0].Answer(func() (datagram.Route, error) {
		t.Error("asked for a flow that is gone")
		return datagram.Route{}, errors.New("late")
	})
	if c := r.Counts(); c.Unrouted != 1 || c.Flows != 0 {
		t.Errorf("%+v, want 1 datagram dropped and no flow", c)
	}
}

func TestDatagramsThatWaitAreFew(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	r.set(func(o *owner) { o.err = datagram.ErrLater })
	client := dial(t, r.at("127.0.0.1"))
	for range 100 {
		send(t, client, "x")
	}
	eventually(t, "most are dropped", func() bool { return r.Counts().Unrouted == 96 })
	r.arrivals()[0].Answer(func() (datagram.Route, error) { return datagram.Route{}, errors.New("no") })
	eventually(t, "the others are", func() bool { return r.Counts().Unrouted == 100 })
}

func TestRefusedClientIsNotAskedForAtEveryDatagram(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	r.set(func(o *owner) { o.err = errors.New("not you") })
	client := dial(t, r.at("127.0.0.1"))
	for range 50 {
		send(t, client, "x")
	}
	eventually(t, "all are dropped", func() bool { return r.Counts().Unrouted == 50 })
	if n := len(r.arrivals()); n > 5 {
		t.Errorf("the router was asked %d times", n)
	}
	r.set(func(o *owner) { o.err = nil })
	check(t, r.listener.Retain(func(netip.AddrPort) bool { return true }))
	ask(t, client, "y", "y")
}

func TestRouteToNowhereIsRefused(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	r.set(func(o *owner) { o.endpoints = []netip.AddrPort{{}} })
	send(t, dial(t, r.at("127.0.0.1")), "x")
	if e := r.end(); e.Cause != datagram.Internal || e.Err == nil {
		t.Errorf("the flow ended as %+v", e)
	}
}
