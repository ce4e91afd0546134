package proxy_test

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"testing"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
)

func itoa(port uint16) string { return strconv.Itoa(int(port)) }

func TestPortRangeForms(t *testing.T) {
	for text, want := range map[string]proxy.PortRange{
		"": {}, "0": {}, "0-0": {},
		"100-200": {First: 100, Last: 200}, "100+50": {First: 100, Last: 150}, "100": {First: 100, Last: 100},
		" 1-65535 ": {First: 1, Last: 65535},
	} {
		if got, err := proxy.ParsePortRange(text); err != nil || got != want {
			t.Errorf("%q is %v (%v), want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"x", "-", "5-", "-5", "0-5", "200-100", "65535+1", "70000", "1-2-3", "1 - 2", "+5"} {
		if got, err := proxy.ParsePortRange(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}

func FuzzParsePortRange(f *testing.F) {
	for _, seed := range []string{"", "0-0", "1-2", "1+2", "65535", "99999+1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := proxy.ParsePortRange(text)
		if err != nil {
			return
		}
		if r.Last < r.First || (r.First == 0) != (r.Last == 0) {
			t.Errorf("%q is %v", text, r)
		}
		if again, err := proxy.ParsePortRange(r.String()); err != nil || again != r {
			t.Errorf("%v reads back as %v (%v)", r, again, err)
		}
	})
}

// inRange makes the proxy take its ports from a range.
func inRange(first, last uint16) func(*proxy.Config) {
	return func(c *proxy.Config) { c.Ports = proxy.PortRange{First: first, Last: last} }
}

func TestListenersTakeTheirPortsFromTheRangeUntilItIsUsedUp(t *testing.T) {
	r := newRig(t, inRange(20000, 20002))
	var ports []*service.Port
	for i := range 4 {
		ports = append(ports, newPort(fmt.Sprintf("web%d", i)))
	}
	var opened proxy.Opened
	for range 3 {
		opened = r.Open(&service.Snapshot{Ports: ports})
	}
	seen := map[uint16]bool{}
	for _, b := range opened.Bindings {
		port := b.Listener.Port()
		if port < 20000 || port > 20002 || seen[port] {
			t.Errorf("listener port %d is outside of the range or used twice", port)
		}
		seen[port] = true
	}
	if len(opened.Bindings) != 3 || opened.Failed != 1 || r.Counts().Failing != 1 {
		t.Fatalf("%d open, %d failed, %d counted as failing; want 3, 1, 1", len(opened.Bindings), opened.Failed, r.Counts().Failing)
	}
	if n := r.log.count("no port is free"); n != 1 {
		t.Errorf("said %d times, want once: %s", n, r.log.String())
	}

	r.open(ports[1:3]...)
	r.Prune()
	r.open(ports[1:]...)
	if n := r.log.count("solved"); n != 1 {
		t.Errorf("the end of the trouble was said %d times, want once: %s", n, r.log.String())
	}
}

func TestKeptPortIsTakenAgainAndByNobodyElse(t *testing.T) {
	kept := newPort("kept")
	for range 20 { // the others' ports are random
		r := newRig(t, inRange(20100, 20102), func(c *proxy.Config) {
			c.KeepPorts = map[service.ListenerName]uint16{{Name: kept.Name}: 20101}
		})
		at := r.open(newPort("a"), newPort("b"), kept)
		if at[2] != "10.88.0.11:20101" {
			t.Fatalf("listening at %s, want the port it had", at[2])
		}
		r.open()
		r.Prune()
	}
}

func TestKeptPortThatIsGoneOrOutOfRangeIsReplaced(t *testing.T) {
	ln, err := net.Listen("tcp", "0.0.0.0:20201")
	check(t, err)
	defer func() { _ = ln.Close() }()
	taken, outside := newPort("taken"), newPort("outside")
	r := newRig(t, inRange(20200, 20210), func(c *proxy.Config) {
		c.KeepPorts = map[service.ListenerName]uint16{{Name: taken.Name}: 20201, {Name: outside.Name}: 20300}
	})
	for _, b := range r.Open(&service.Snapshot{Ports: []*service.Port{taken, outside}}).Bindings {
		if port := b.Listener.Port(); port == 20201 || port < 20200 || port > 20210 {
			t.Errorf("%v listens at %d", b.Name, port)
		}
	}
}

func TestKeptPortOutlivesAFailedStart(t *testing.T) {
	p := newPort("web")
	r := newRig(t, func(c *proxy.Config) {
		c.BindAddress = netip.MustParseAddr("10.88.0.50")
		c.KeepPorts = map[service.ListenerName]uint16{{Name: p.Name}: 40404}
	})
	snap := &service.Snapshot{Ports: []*service.Port{p}}
	if opened := r.Open(snap); opened.Failed != 1 {
		t.Fatalf("opened %+v on an address that is not there", opened)
	}
	check(t, addAddress("lo", "10.88.0.50/32"))
	defer func() { check(t, removeAddress("lo", "10.88.0.50/32")) }()
	opened := r.Open(snap)
	if len(opened.Bindings) != 1 || opened.Bindings[0].Listener.Port() != 40404 {
		t.Errorf("bindings %v, want the port it had", opened.Bindings)
	}
}

func TestListenersKeepOffNodePorts(t *testing.T) {
	for range 10 {
		r := newRig(t, ruled, inRange(30500, 30501))
		opened := r.Open(&service.Snapshot{Ports: []*service.Port{withNodePort(newPort("web"), 30500)}})
		if opened.Failed != 0 || opened.Bindings[0].Listener.Port() != 30501 {
			t.Fatalf("opened %+v, want the listener beside the node port", opened)
		}
		r.open()
		r.Prune()
	}
}

func TestListenersLeaveDescriptorsForConnections(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	defer limitDescriptors(t, 200)()
	r := newRig(t)
	ports := []*service.Port{newPort("first", a)}
	for i := range 400 {
		ports = append(ports, newPort(fmt.Sprintf("more%d", i)))
	}
	opened := r.Open(&service.Snapshot{Ports: ports})
	if opened.Failed == 0 || len(opened.Bindings) < 50 || len(opened.Bindings) > 150 {
		t.Errorf("%d listeners are open and %d failed of 401, with 200 descriptors", len(opened.Bindings), opened.Failed)
	}
	connect(t, listenerOf(t, opened, ports[0])).roundTrip(t)
	if n := r.log.count("too few descriptors"); n != 1 {
		t.Errorf("said %d times, want once", n)
	}
	r.open(ports[:10]...)
	r.Prune()
	r.open(ports[200:210]...)
	if n := r.log.count("solved"); n != 1 {
		t.Errorf("the end of the trouble was said %d times: %s", n, r.log.String())
	}
}

func TestListenersBindToTheAddressGiven(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.12:0")
	r := newRig(t, func(c *proxy.Config) { c.BindAddress = netip.MustParseAddr("10.88.0.11") })
	opened := r.Open(&service.Snapshot{Ports: []*service.Port{newPort("web", a)}})
	at := opened.Bindings[0].Listener
	connect(t, at.String()).roundTrip(t)
	wantRefused(t, net.JoinHostPort("10.88.0.12", itoa(at.Port())))
}
