package datagram_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/proxy/datagram"
)

// closed returns an address that nobody listens on.
func closed(t *testing.T, address string) *net.UDPConn {
	t.Helper()
	c := socket(t, address)
	check(t, c.Close())
	return c
}

func TestEarlierRefusalCostsNoLaterDatagram(t *testing.T) {
	for name, family := range families {
		t.Run(name, func(t *testing.T) {
			endpoint := closed(t, family.endpoint)
			r := newRig(t, family.listen, datagram.Config{}, endpoint)
			client := dial(t, r.at(family.addresses[0]))
			send(t, client, "1")
			eventually(t, "the endpoint refuses", func() bool { return r.Counts().Failed > 0 })
			echo(t, addrPort(endpoint).String())
			ask(t, client, "2", "2")
			if n := len(r.arrivals()); n != 1 {
				t.Errorf("%d flows were made, want one that goes on", n)
			}
		})
	}
}

func TestRefusedDatagramGoesToAnotherEndpoint(t *testing.T) {
	for name, family := range families {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, family.listen, datagram.Config{}, closed(t, family.endpoint), closed(t, family.endpoint), echo(t, family.endpoint))
			client := dial(t, r.at(family.addresses[0]))
			ask(t, client, "asked once", "asked once")
			ask(t, client, "and again", "and again")
			if c := r.Counts(); c.Failed != 2 || c.Resent != 2 || c.Opened != 1 {
				t.Errorf("%+v, want 2 failures, 2 sent again, 1 flow", c)
			}
			empty := dial(t, r.at(family.addresses[0]))
			ask(t, empty, "", "")
		})
	}
}

func TestRefusalAmidABurstLosesNoneOfIt(t *testing.T) {
	for name, family := range families {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, family.listen, datagram.Config{}, closed(t, family.endpoint), echo(t, family.endpoint))
			client := dial(t, r.at(family.addresses[0]))
			texts := []string{"1", "22", "333", "4444"} // none is joined to one that is shorter
			burst(r, client, texts...)
			for _, text := range texts {
				want(t, client, text)
			}
		})
	}
}

// The kernel keeps no more of a long datagram than ICMP quotes, so it is lost, as on
// a network; what must not happen is that a part of it arrives.
func TestNoPartOfARefusedDatagramIsSent(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{}, closed(t, "127.0.0.1:0"), echo(t, "127.0.0.1:0"))
	client := dial(t, r.at("127.0.0.1"))
	send(t, client, strings.Repeat("long", 500))
	eventually(t, "the endpoint refuses", func() bool { return r.Counts().Failed > 0 })
	ask(t, client, "short", "short")
}

func TestFlowMayEndWhenItsEndpointRefuses(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{}, closed(t, "127.0.0.1:0"))
	client := dial(t, r.at("127.0.0.1"))
	send(t, client, "x")
	eventually(t, "the endpoint refuses", func() bool { return r.Counts().Failed > 0 })
	r.set(func(o *owner) { o.endpoints = nil })
	send(t, client, "y")
	if e := r.end(); e.Cause != datagram.Refused || e.Err == nil {
		t.Errorf("the flow ended as %+v", e)
	}
}

func TestEndpointsThatAllRefuseHoldUpNobody(t *testing.T) {
	dead, alive := &owner{idle: time.Minute, ended: make(chan end, 1000)}, echo(t, "127.0.0.1:0")
	dead.endpoints = []netip.AddrPort{addrPort(closed(t, "127.0.0.1:0")), addrPort(closed(t, "127.0.0.1:0"))}
	r := newRig(t, anywhere, datagram.Config{}, alive)
	refusing, err := r.Listen(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 30001), dead.route)
	check(t, err)
	check(t, refusing.Unpark())
	client, victim := dial(t, r.at("127.0.0.1")), dial(t, net.UDPAddrFromAddrPort(refusing.Addr()))
	const questions = 200
	for range questions {
		send(t, victim, "x")
		ask(t, client, "y", "y")
	}
	if c := r.Counts(); c.Failed == 0 || c.Resent > 4*questions {
		t.Errorf("%+v, want datagrams sent again a few times each", c)
	}
}

func TestEndpointWithoutARouteIsGivenUp(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	nowhere := netip.MustParseAddrPort("192.0.2.1:53") // no route leads there
	r.set(func(o *owner) { o.endpoints = append([]netip.AddrPort{nowhere}, o.endpoints...) })
	ask(t, dial(t, r.at("127.0.0.1")), "x", "x")
	r.set(func(o *owner) { o.endpoints = o.endpoints[:1] })
	send(t, dial(t, r.at("127.0.0.1")), "x")
	if e := r.end(); e.Cause != datagram.Refused {
		t.Errorf("a flow to nowhere ended as %+v", e)
	}
}
