package datagram_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/lab"
	"github.com/kube-splice/kube-splice/proxy/datagram"
)

func TestMain(m *testing.M) {
	err := lab.Isolate()
	if err == nil {
		err = addAddresses()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the tests need a network namespace:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// addAddresses gives the machine several addresses of each family.
func addAddresses() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	for _, cidr := range []string{"10.88.0.11/32", "10.88.0.12/32", "fd00:88::11/128", "fd00:88::12/128"} {
		addr, err := netlink.ParseAddr(cidr)
		if err == nil {
			err = netlink.AddrAdd(lo, addr)
		}
		if err != nil && !errors.Is(err, unix.EEXIST) { // a process that fuzzes in parallel has made them
			return err
		}
	}
	return lab.AwaitAddresses()
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// patience is for what happens at once on a machine that has nothing else to do.
const patience = 20 * time.Second

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// owner is what owns a Listener in these tests: it gives every flow the first of its
// endpoints, or, when that fails, the one after it.
type owner struct {
	mu        sync.Mutex
	endpoints []netip.AddrPort
	idle      time.Duration
	asked     []datagram.Arrival
	err       error
	ended     chan end
}

// end is how one flow ended.
type end struct {
	client netip.AddrPort
	datagram.Result
}

func (o *owner) route(a datagram.Arrival) (datagram.Route, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = append(o.asked, a)
	if o.err != nil {
		return datagram.Route{}, o.err
	}
	if len(o.endpoints) == 0 {
		return datagram.Route{}, errors.New("no endpoint")
	}
	t := &token{owner: o, client: a.Client, at: o.endpoints[0]}
	return datagram.Route{Backend: t.at, Idle: o.idle, Token: t}, nil
}

func (o *owner) set(edit func(*owner)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	edit(o)
}

func (o *owner) arrivals() []datagram.Arrival {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.asked)
}

type token struct {
	owner  *owner
	client netip.AddrPort
	at     netip.AddrPort
	done   bool
}

func (t *token) Prepare(int) error { return nil }

func (t *token) Failed(error) netip.AddrPort {
	t.owner.mu.Lock()
	defer t.owner.mu.Unlock()
	if len(t.owner.endpoints) == 0 {
		return netip.AddrPort{}
	}
	at := slices.Index(t.owner.endpoints, t.at) + 1
	t.at = t.owner.endpoints[at%len(t.owner.endpoints)]
	return t.at
}

func (t *token) Done(r datagram.Result) {
	if t.done {
		panic("a flow ended twice")
	}
	t.done = true
	t.owner.ended <- end{t.client, r}
}

// rig is a Loop with one Listener.
type rig struct {
	*datagram.Loop
	*owner
	t        testing.TB
	listener *datagram.Listener
}

const anywhere = "0.0.0.0"

// newRig returns a rig that listens on an address and serves.
func newRig(t testing.TB, address string, cfg datagram.Config, endpoints ...*net.UDPConn) *rig {
	t.Helper()
	loop, err := datagram.New(cfg)
	check(t, err)
	t.Cleanup(loop.Close)
	r := &rig{Loop: loop, t: t, owner: &owner{idle: time.Minute, ended: make(chan end, 100_000)}}
	for _, e := range endpoints {
		r.endpoints = append(r.endpoints, addrPort(e))
	}
	r.listener = r.listen(netip.MustParseAddr(address))
	check(t, r.listener.Unpark())
	return r
}

// listen listens on a port that is free.
func (r *rig) listen(addr netip.Addr) *datagram.Listener {
	r.t.Helper()
	for port := uint16(20000); port < 30000; port++ {
		l, err := r.Listen(netip.AddrPortFrom(addr, port), r.route)
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		check(r.t, err)
		return l
	}
	r.t.Fatal("no port is free")
	return nil
}

// at returns where clients reach the Listener by an address of the machine.
func (r *rig) at(address string) *net.UDPAddr {
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(address), r.listener.Addr().Port()))
}

// end waits for the end of a flow.
func (r *rig) end() end {
	r.t.Helper()
	select {
	case e := <-r.ended:
		return e
	case <-time.After(patience):
		r.t.Fatal("no flow has ended")
		return end{}
	}
}

func addrPort(c *net.UDPConn) netip.AddrPort {
	a := c.LocalAddr().(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// socket opens a UDP socket on an address, with much room for what comes.
func socket(t testing.TB, address string) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(address)))
	check(t, err)
	t.Cleanup(func() { _ = c.Close() })
	control(t, c, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) })
	return c
}

func control(t testing.TB, c syscall.Conn, do func(fd int) error) {
	t.Helper()
	raw, err := c.SyscallConn()
	check(t, err)
	var doErr error
	check(t, raw.Control(func(fd uintptr) { doErr = do(int(fd)) }))
	check(t, doErr)
}

// echo is an endpoint that answers every datagram with itself.
func echo(t testing.TB, address string) *net.UDPConn {
	t.Helper()
	c := socket(t, address)
	go answer(c, func(b []byte) []byte { return b })
	return c
}

// named is an endpoint that answers with its name.
func named(t testing.TB, name string) *net.UDPConn {
	t.Helper()
	c := socket(t, "127.0.0.1:0")
	go answer(c, func([]byte) []byte { return []byte(name) })
	return c
}

func answer(c *net.UDPConn, with func([]byte) []byte) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		_, _ = c.WriteToUDPAddrPort(with(buf[:n]), from)
	}
}

// dial returns a client: a socket that hears only whom it asks.
func dial(t testing.TB, to *net.UDPAddr) *net.UDPConn {
	t.Helper()
	c, err := net.DialUDP("udp", nil, to)
	check(t, err)
	t.Cleanup(func() { _ = c.Close() })
	control(t, c, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) })
	return c
}

func send(t testing.TB, c *net.UDPConn, text string) {
	t.Helper()
	_, err := c.Write([]byte(text))
	check(t, err)
}

// receive returns the next datagram.
func receive(t testing.TB, c *net.UDPConn) string {
	t.Helper()
	check(t, c.SetReadDeadline(time.Now().Add(patience)))
	buf := make([]byte, 1<<16)
	n, err := c.Read(buf)
	check(t, err)
	return string(buf[:n])
}

func want(t testing.TB, c *net.UDPConn, text string) {
	t.Helper()
	if got := receive(t, c); got != text {
		t.Fatalf("received %.40q (%d bytes), want %.40q (%d bytes)", got, len(got), text, len(text))
	}
}

func ask(t testing.TB, c *net.UDPConn, text, answer string) {
	t.Helper()
	send(t, c, text)
	want(t, c, answer)
}

// descriptors returns how many the process has open.
func descriptors(t testing.TB) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	check(t, err)
	return len(files)
}
