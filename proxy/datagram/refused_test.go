package datagram_test

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/proxy/datagram"
)

// once sends one datagram from each of so many sockets.
func (r *rig) once(clients int) {
	r.t.Helper()
	for range clients {
		c, err := net.DialUDP("udp", nil, r.at("127.0.0.1"))
		check(r.t, err)
		send(r.t, c, "x")
		check(r.t, c.Close())
	}
}

func TestRefusedClientsMakeNobodyLeave(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{MaxFlows: 2}, echo(t, "127.0.0.1:0"))
	clients := []*net.UDPConn{dial(t, r.at("127.0.0.1")), dial(t, r.at("127.0.0.1"))}
	for _, c := range clients {
		ask(t, c, "x", "x")
	}
	r.set(func(o *owner) { o.err = errors.New("not you") })
	r.once(20)
	eventually(t, "all are refused", func() bool { return r.Counts().Unrouted == 20 })
	for _, c := range clients {
		ask(t, c, "y", "y")
	}
	if c := r.Counts(); c.Evicted != 0 || c.Opened != 2 {
		t.Errorf("%+v, want both flows kept", c)
	}
}

func TestRefusedClientsAreRememberedInBoundedNumber(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	r.set(func(o *owner) { o.err = errors.New("not you") })
	const clients, most = 3000, 1024
	hold(r, func() { r.once(clients) }) // which is one more
	eventually(t, "all are refused", func() bool { return r.Counts().Unrouted == clients+1 })
	if n := r.Counts().Flows; n > most {
		t.Errorf("%d are remembered, want %d at most", n, most)
	}
	eventually(t, "all are forgotten", func() bool { return r.Counts().Flows == 0 })
	r.set(func(o *owner) { o.err = nil })
	ask(t, dial(t, r.at("127.0.0.1")), "x", "x")
}

// Only a flow with a socket can give one to another.
func TestRefusedClientsAreNotInTheWayWhenDescriptorsRunOut(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	late, early := dial(t, r.at("127.0.0.1")), dial(t, r.at("127.0.0.1"))
	r.set(func(o *owner) { o.err = errors.New("not you") })
	r.once(20)
	eventually(t, "all are refused", func() bool { return r.Counts().Unrouted == 20 })
	r.set(func(o *owner) { o.err = nil })
	ask(t, early, "x", "x")
	useUpDescriptors(t)
	ask(t, late, "x", "x")
	if e := r.end(); e.client != addrPort(early) || e.Cause != datagram.Evicted {
		t.Errorf("%+v made room, want %v", e, addrPort(early))
	}
}

func TestClientWithoutASocketIsNotAskedForAtEveryDatagram(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	client := dial(t, r.at("127.0.0.1"))
	restore := useUpDescriptors(t)
	for range 50 {
		send(t, client, "x")
	}
	eventually(t, "all are dropped", func() bool { return r.Counts().NoSocket == 50 })
	if n := len(r.arrivals()); n > 5 {
		t.Errorf("the router was asked %d times", n)
	}
	restore()
	check(t, r.listener.Retain(func(netip.AddrPort) bool { return true }))
	ask(t, client, "y", "y")
}

// useUpDescriptors leaves the process none to open, until restore or the end of the test.
func useUpDescriptors(t *testing.T) (restore func()) {
	t.Helper()
	var limit unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(descriptors(t)), Max: limit.Max}))
	var taken []int
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			break
		}
		taken = append(taken, fd)
	}
	restore = sync.OnceFunc(func() {
		for _, fd := range taken {
			check(t, unix.Close(fd))
		}
		check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	})
	t.Cleanup(restore)
	return restore
}
