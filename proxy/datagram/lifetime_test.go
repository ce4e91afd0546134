package datagram_test

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/proxy/datagram"
)

func TestFlowEndsWhenIdle(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	r.set(func(o *owner) { o.idle = 200 * time.Millisecond })
	client := dial(t, r.at("127.0.0.1"))
	before := descriptors(t)
	ask(t, client, "1", "1")
	if e := r.end(); e.Cause != datagram.Idle || e.Duration < r.idle {
		t.Errorf("the flow ended as %+v, before its limit %v", e, r.idle)
	}
	eventually(t, "the flow's descriptor is closed", func() bool { return descriptors(t) == before })
	if n := r.Counts().Flows; n != 0 {
		t.Errorf("%d flows are left", n)
	}
	ask(t, client, "2", "2")
}

func TestEitherDirectionKeepsAFlowAlive(t *testing.T) {
	const limit = 2 * time.Second
	for name, sender := range map[string]func(client, endpoint *net.UDPConn, flow net.Addr){
		"client":   func(client, _ *net.UDPConn, _ net.Addr) { _, _ = client.Write([]byte("x")) },
		"endpoint": func(_, endpoint *net.UDPConn, flow net.Addr) { _, _ = endpoint.WriteTo([]byte("x"), flow) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			endpoint := socket(t, "127.0.0.1:0")
			r := newRig(t, anywhere, datagram.Config{}, endpoint)
			r.set(func(o *owner) { o.idle = limit })
			client := dial(t, r.at("127.0.0.1"))
			send(t, client, "first")
			check(t, endpoint.SetReadDeadline(time.Now().Add(patience)))
			_, flow, err := endpoint.ReadFrom(make([]byte, 10))
			check(t, err)
			for start := time.Now(); time.Since(start) < 2*limit; time.Sleep(limit / 20) {
				sender(client, endpoint, flow)
			}
			if e := r.end(); e.Cause != datagram.Idle || e.Duration < 3*limit-limit/10 {
				t.Errorf("the flow ended as %+v, though it was in use for %v", e, 2*limit)
			}
			if n := len(r.arrivals()); n != 1 {
				t.Errorf("%d flows, want 1", n)
			}
		})
	}
}

func TestFlowMayLastForEver(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	r.set(func(o *owner) { o.idle = math.MaxInt64 })
	client := dial(t, r.at("127.0.0.1"))
	for range 3 {
		ask(t, client, "x", "x")
	}
	if c := r.Counts(); c.Opened != 1 || c.Flows != 1 {
		t.Errorf("%+v, want one flow", c)
	}
}

func TestLeastRecentlyUsedFlowMakesRoom(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{MaxFlows: 3}, echo(t, "127.0.0.1:0"))
	var clients []*net.UDPConn
	for range 3 {
		clients = append(clients, dial(t, r.at("127.0.0.1")))
		ask(t, clients[len(clients)-1], "x", "x")
	}
	ask(t, clients[0], "again", "again")
	ask(t, dial(t, r.at("127.0.0.1")), "x", "x")
	if e := r.end(); e.client != addrPort(clients[1]) || e.Cause != datagram.Evicted {
		t.Errorf("%+v made room, want %v", e, addrPort(clients[1]))
	}
	if c := r.Counts(); c.Flows != 3 || c.Evicted != 1 {
		t.Errorf("%+v, want 3 flows and 1 evicted", c)
	}
	ask(t, clients[1], "back", "back")
	if e := r.end(); e.client != addrPort(clients[2]) {
		t.Errorf("%v made room, want %v", e.client, addrPort(clients[2]))
	}
}

func TestLeastRecentlyUsedFlowMakesRoomWhateverItsLimit(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{MaxFlows: 3}, echo(t, "127.0.0.1:0"))
	var clients []*net.UDPConn
	for _, limit := range []time.Duration{time.Hour, time.Minute, time.Hour} {
		r.set(func(o *owner) { o.idle = limit })
		clients = append(clients, dial(t, r.at("127.0.0.1")))
		ask(t, clients[len(clients)-1], "x", "x")
	}
	ask(t, clients[0], "again", "again")
	for _, first := range []int{1, 2, 0} {
		ask(t, dial(t, r.at("127.0.0.1")), "x", "x")
		if e := r.end(); e.client != addrPort(clients[first]) {
			t.Errorf("%v made room, want %v", e.client, addrPort(clients[first]))
		}
	}
}

func TestLastReplyOfAFlowIsDeliveredAndCounted(t *testing.T) {
	endpoint := socket(t, "127.0.0.1:0")
	r := newRig(t, anywhere, datagram.Config{MaxFlows: 2}, endpoint)
	client, others := dial(t, r.at("127.0.0.1")), []*net.UDPConn{dial(t, r.at("127.0.0.1")), dial(t, r.at("127.0.0.1"))}
	send(t, client, "question")
	_, flow, err := endpoint.ReadFrom(make([]byte, 10))
	check(t, err)
	hold(r, func() { // which takes the other place
		_, err := endpoint.WriteTo([]byte("answer"), flow)
		check(t, err)
		for _, other := range others {
			send(t, other, "make room")
		}
	})
	want(t, client, "answer")
	if e := r.end(); e.client != addrPort(client) || e.Cause != datagram.Evicted || e.DatagramsDown != 1 || e.Down != 6 {
		t.Errorf("the flow ended as %+v, want its answer counted", e)
	}
}

func TestFlowsLeaveWithTheirEndpoint(t *testing.T) {
	a, b := named(t, "a"), named(t, "b")
	r := newRig(t, anywhere, datagram.Config{}, a)
	one, other := dial(t, r.at("127.0.0.1")), dial(t, r.at("127.0.0.1"))
	ask(t, one, "?", "a")
	r.set(func(o *owner) { o.endpoints = []netip.AddrPort{addrPort(b)} })
	ask(t, other, "?", "b")
	check(t, r.listener.Retain(func(e netip.AddrPort) bool { return e == addrPort(b) }))
	if e := r.end(); e.client != addrPort(one) || e.Cause != datagram.Removed {
		t.Errorf("%+v left, want %v", e, addrPort(one))
	}
	ask(t, one, "?", "b")
	ask(t, other, "?", "b")
	if n := len(r.arrivals()); n != 3 {
		t.Errorf("%d flows were made, want 3: the one of b was to stay", n)
	}
}

func TestListenersAreIndependent(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	other := r.listen(netip.MustParseAddr(anywhere))
	check(t, other.Unpark())
	client := dial(t, r.at("127.0.0.1"))
	ask(t, client, "x", "x")
	ask(t, dial(t, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), other.Addr().Port()))), "x", "x")
	check(t, other.Close())
	check(t, other.Close()) // again does nothing
	if e := r.end(); e.Cause != datagram.Removed || e.client == addrPort(client) {
		t.Errorf("%+v ended with the other listener", e)
	}
	ask(t, client, "y", "y")
	again, err := r.Listen(other.Addr(), r.route)
	check(t, err)
	check(t, again.Close())
}

func TestClosingTheLoopEndsEverything(t *testing.T) {
	before := descriptors(t)
	loop, err := datagram.New(datagram.Config{})
	check(t, err)
	r := &rig{Loop: loop, t: t, owner: &owner{idle: time.Minute, ended: make(chan end, 10)}}
	endpoint := echo(t, "127.0.0.1:0")
	r.endpoints = []netip.AddrPort{addrPort(endpoint)}
	r.listener = r.listen(netip.MustParseAddr(anywhere))
	check(t, r.listener.Unpark())
	client := dial(t, r.at("127.0.0.1"))
	ask(t, client, "x", "x")
	loop.Close()
	if e := r.end(); e.Cause != datagram.Shutdown {
		t.Errorf("the flow ended as %+v", e)
	}
	if err := r.listener.Unpark(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a listener of a closed loop says %v", err)
	}
	check(t, client.Close())
	check(t, endpoint.Close())
	eventually(t, "every descriptor is closed", func() bool { return descriptors(t) <= before })
}

// Many clients that ask once, each from a port of its own, as stub resolvers do.
func TestChurnLeavesNothingBehind(t *testing.T) {
	const clients, most = 10_000, 500
	r := newRig(t, anywhere, datagram.Config{MaxFlows: most}, echo(t, "127.0.0.1:0"))
	r.set(func(o *owner) { o.idle = 300 * time.Millisecond })
	ask(t, dial(t, r.at("127.0.0.1")), "warm", "warm")
	r.end()
	files, goroutines := descriptors(t), runtime.NumGoroutine()
	for i := range clients {
		client, err := net.DialUDP("udp", nil, r.at("127.0.0.1"))
		check(t, err)
		text := fmt.Sprint(i)
		ask(t, client, text, text)
		check(t, client.Close())
		if n := r.Counts().Flows; n > most {
			t.Fatalf("%d flows, more than %d", n, most)
		}
	}
	eventually(t, "every flow ends", func() bool { return r.Counts().Flows == 0 })
	eventually(t, "descriptors and goroutines are as before", func() bool {
		return descriptors(t) <= files && runtime.NumGoroutine() <= goroutines
	})
	if c := r.Counts(); c.Evicted == 0 || c.Opened != c.Ended[datagram.Idle]+c.Ended[datagram.Evicted] {
		t.Errorf("%+v, want every flow to have ended, some of them for others", c)
	}
}

// Descriptors run out; the newest clients are served all the same.
func TestLackOfDescriptorsIsSurvived(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	var clients []*net.UDPConn
	for range 100 {
		clients = append(clients, dial(t, r.at("127.0.0.1")))
	}
	var limit unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	few := unix.Rlimit{Cur: uint64(descriptors(t) + 20), Max: limit.Max}
	check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	defer func() { check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
	for _, c := range clients {
		ask(t, c, "x", "x")
	}
	if c := r.Counts(); c.Evicted < 70 || c.Opened != 100 {
		t.Errorf("%+v, want all 100 served by flows that make room", c)
	}
}

// Every flow takes an ephemeral port; there may be fewer than flows are allowed.
func TestLackOfPortsIsSurvived(t *testing.T) {
	const name = "/proc/sys/net/ipv4/ip_local_port_range"
	before, err := os.ReadFile(name)
	check(t, err)
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	check(t, os.WriteFile(name, []byte("31000 31019"), 0))
	defer func() { check(t, os.WriteFile(name, before, 0)) }()
	for i := range 100 {
		client, err := net.DialUDP("udp", udpAddr(fmt.Sprint("127.0.0.1:", 40000+i)), r.at("127.0.0.1"))
		check(t, err)
		defer client.Close()
		ask(t, client, "x", "x")
	}
	if c := r.Counts(); c.Evicted < 80 || c.Opened != 100 {
		t.Errorf("%+v, want all 100 served by flows that make room", c)
	}
}

func TestPortsThatAreTakenAreReported(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	if _, err := r.Listen(r.listener.Addr(), r.route); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a taken port: %v", err)
	}
	check(t, r.listener.Park())
	if _, err := r.Listen(r.listener.Addr(), r.route); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a parked listener's port: %v", err)
	}
}
