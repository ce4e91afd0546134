package proxy_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
)

// closedPort returns an address of ours on which nobody listens.
func closedPort(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "10.88.0.13:0")
	check(t, err)
	defer func() { _ = ln.Close() }()
	return ln.Addr().String()
}

const silentEndpoint, otherSilentEndpoint = "10.99.0.7:80", "10.99.0.8:80"

func TestFailedDialGoesToAnotherEndpoint(t *testing.T) {
	b, _ := echo(t, "b", "10.88.0.12:0")
	r := newRig(t)
	at := r.open(newPort("web", closedPort(t), b))[0]
	tries := 0
	for range 20 {
		c := connect(t, at)
		if c.name != "b" {
			t.Fatalf("answered by %s", c.name)
		}
		_ = c.Close()
		rec := r.record()
		tries += rec.Attempts
		if rec.Backend.String() != b || rec.Attempts > 2 {
			t.Errorf("record %+v, want backend %s after 2 tries at most", rec, b)
		}
	}
	if failed := r.Counts().FailedTries; failed == 0 || tries != 20+int(failed) {
		t.Errorf("%d tries in all, %d counted as failed", tries, failed)
	}
}

func TestClientIsResetAtOnceWhenEveryEndpointRefuses(t *testing.T) {
	r := newRig(t)
	at := r.open(newPort("web", closedPort(t), closedPort(t)))[0]
	watch := lab.StartStopwatch()
	wantReset(t, at)
	if took := watch.Elapsed(); took > time.Second {
		t.Errorf("the reset took %v", took)
	}
	rec := r.record()
	if rec.Close != proxy.DialFailed || rec.Attempts != 2 || rec.Err == nil || r.Counts().DialFailed != 1 {
		t.Errorf("record %+v, counts %+v; want dial-failed after 2 tries", rec, r.Counts())
	}
}

func TestClientIsResetWhenTheDialBudgetIsSpent(t *testing.T) {
	const budget = 3 * time.Second
	r := newRig(t, func(c *proxy.Config) { c.DialTimeout = budget })
	at := r.open(newPort("web", silentEndpoint, otherSilentEndpoint))[0]
	started, watch := time.Now(), lab.StartStopwatch()
	wantReset(t, at)
	if took := time.Since(started); took < budget || watch.Elapsed() > budget+time.Second {
		t.Errorf("reset after %v, want %v", took, budget)
	}
	if rec := r.record(); rec.Close != proxy.DialFailed || rec.Attempts < 3 {
		t.Errorf("record %+v, want dial-failed after more than one round of tries", rec)
	}
}

func TestSilentEndpointCostsOnlyAShortTry(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	r := newRig(t)
	at := r.open(newPort("web", a, silentEndpoint))[0]
	for range 4 {
		watch := lab.StartStopwatch()
		c := connect(t, at)
		if took := watch.Elapsed(); c.name != "a" || took > 2*time.Second {
			t.Errorf("answered by %q after %v", c.name, took)
		}
	}
}

// An endpoint that did not answer within a short first try is the only hope when
// every other one refuses.
func TestSlowEndpointIsAskedAgainWhenNoOtherIsLeft(t *testing.T) {
	slow := netip.MustParseAddrPort(otherSilentEndpoint)
	ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.IPv4Unspecified(), slow.Port())))
	check(t, err)
	var accepting sync.WaitGroup
	accepting.Go(func() { closeAll(ln) })
	defer accepting.Wait()
	defer func() { _ = ln.Close() }()
	r := newRig(t)
	at := r.open(newPort("web", slow.String(), closedPort(t)))[0]
	conn, err := net.Dial("tcp", at)
	check(t, err)
	defer func() { _ = conn.Close() }()
	time.Sleep(400 * time.Millisecond) // past the first try
	check(t, addAddress("lo", slow.Addr().String()+"/32"))
	defer func() { check(t, removeAddress("lo", slow.Addr().String()+"/32")) }()
	check(t, conn.SetReadDeadline(time.Now().Add(15*time.Second)))
	_, err = conn.Read(make([]byte, 1)) // until the endpoint closes
	if !errors.Is(err, io.EOF) {
		t.Errorf("the client read %v, want the endpoint's end", err)
	}
	_ = conn.Close()
	if rec := r.record(); rec.Attempts < 2 || rec.Backend != slow {
		t.Errorf("record %+v, want the slow endpoint after several tries", rec)
	}
}

// closeAll closes every connection at once, also those of a dial that was given up
// when the handshake was over already.
func closeAll(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		_ = conn.Close()
	}
}

func TestOneUnreachableEndpointDoesNotDelayOtherClients(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	r := newRig(t)
	at := r.open(newPort("web", a, silentEndpoint))[0]
	quick := make(chan time.Duration, 20)
	for range 20 {
		go func() {
			watch := lab.StartStopwatch()
			if c, err := tryConnect(at); err == nil {
				_ = c.Close()
			}
			quick <- watch.Elapsed()
		}()
	}
	soon := 0
	for range 20 {
		if <-quick < 200*time.Millisecond {
			soon++
		}
	}
	if soon < 10 {
		t.Errorf("%d of 20 clients were served at once, want the 10 that got the endpoint that answers", soon)
	}
}

func TestAddressesOfTheNodeItselfAreNeverDialled(t *testing.T) {
	var reached atomic.Int64
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			reached.Add(1)
			_ = conn.Close()
		}
	}()
	defer func() { _ = ln.Close() }()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	check(t, err)
	r := newRig(t)
	for _, host := range []string{"127.0.0.1", "127.0.0.2", "0.0.0.0", "169.254.169.254", "224.0.0.1", "255.255.255.255"} {
		wantReset(t, r.open(newPort("web", host+":"+port))[0])
		if rec := r.record(); rec.Close != proxy.DialFailed || !strings.Contains(rec.Err.Error(), "refuse to dial") {
			t.Errorf("%s: recorded as %s (%v), want dial-failed, refused to dial", host, rec.Close, rec.Err)
		}
	}
	if reached.Load() != 0 {
		t.Error("a loopback address was dialled")
	}
}

func TestOwnListenersAreNeverDialled(t *testing.T) {
	r := newRig(t, inRange(20400, 20401))
	// Whichever of the two ports the listener gets, both are its endpoints.
	at := r.open(newPort("web", "10.88.0.11:20400", "10.88.0.12:20401", "10.88.0.12:20400", "10.88.0.11:20401"))[0]
	wantReset(t, at)
	rec := r.record()
	if rec.Close != proxy.DialFailed || r.Counts().Accepted != 1 {
		t.Errorf("recorded as %s, %d connections accepted; want dial-failed and only the client's", rec.Close, r.Counts().Accepted)
	}
}

func TestEndpointsThatLeaveDuringTheDialAreNotDialFailures(t *testing.T) {
	r := newRig(t, func(c *proxy.Config) { c.DialTimeout = 3 * time.Second })
	at := r.open(newPort("web", silentEndpoint))[0]
	conn, err := net.Dial("tcp", at)
	check(t, err)
	defer func() { _ = conn.Close() }()
	for r.Counts().Accepted == 0 {
		time.Sleep(time.Millisecond)
	}
	r.open(newPort("web"))
	if rec := r.record(); rec.Close != proxy.NoEndpoints || r.Counts().NoEndpoints != 1 {
		t.Errorf("recorded as %s, want no-endpoints", rec.Close)
	}
}

func TestAffinityLeavesAnEndpointThatFails(t *testing.T) {
	a, stopA := echo(t, "a", "10.88.0.11:0")
	b, stopB := echo(t, "b", "10.88.0.12:0")
	r := newRig(t)
	p := newPort("web", a, b)
	p.Policy.Affinity = time.Hour
	at := r.open(p)[0]
	first := connect(t, at).name
	for range 5 {
		failed := r.Counts().FailedTries
		c := connect(t, at)
		if c.name != first && r.Counts().FailedTries == failed {
			t.Fatalf("answered by %s, want %s", c.name, first)
		}
		first = c.name // on a busy machine a healthy endpoint may be too slow, which moves the client
	}
	address, other := a, "b"
	map[string]func(){"a": stopA, "b": stopB}[first]()
	if first == "b" {
		address, other = b, "a"
	}
	for i := range 5 {
		failed := r.Counts().FailedTries
		c := connect(t, at)
		if i > 0 && r.Counts().FailedTries > failed {
			t.Skip("the machine is too busy: an endpoint on loopback did not answer in time")
		}
		if c.name != other {
			t.Fatalf("answered by %q, want %s", c.name, other)
		}
		_ = c.Close()
		if i == 0 {
			echo(t, first, address) // it is back, but the client has moved
		}
	}
	p = newPort("web", address)
	p.Policy.Affinity = time.Hour
	r.open(p)
	if c := connect(t, at); c.name != first {
		t.Errorf("answered by %s, want the only endpoint left", c.name)
	}
}

func TestDefaultBalancerAndTheServicesOwn(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	b, _ := echo(t, "b", "10.88.0.12:0")
	r := newRig(t, func(c *proxy.Config) { c.Balancer = "source-hash" })
	hashed, rotated := newPort("hashed", a, b), newPort("rotated", a, b)
	rotated.Policy.Balancer = "round-robin"
	at := r.open(hashed, rotated)
	if n := len(names(t, at[0])); n != 1 {
		t.Errorf("source-hash led one client to %d endpoints", n)
	}
	if n := names(t, at[1]); n["a"] != 4 || n["b"] != 4 {
		t.Errorf("round-robin gave %v", n)
	}
}

// names connects eight times and counts who answered.
func names(t testing.TB, at string) map[string]int {
	t.Helper()
	count := map[string]int{}
	for range 8 {
		count[connect(t, at).name]++
	}
	return count
}

func TestIdleTimeoutOfAServiceEndsItsIdleConnections(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	r := newRig(t)
	p := newPort("web", a)
	p.Policy = service.Policy{IdleTimeout: 2 * time.Second}
	connect(t, r.open(p)[0]).roundTrip(t)
	if rec := r.record(); rec.Close != proxy.IdleLimit || rec.Up != 6 {
		t.Errorf("record %+v, want idle after 6 bytes", rec)
	}
}

// A port given by bind(2) would be one socket's alone, also after it is closed.
func TestConnectionsToDifferentEndpointsShareLocalPorts(t *testing.T) {
	const file = "/proc/sys/net/ipv4/ip_local_port_range"
	a, _ := echo(t, "a", "10.88.0.11:0")
	b, _ := echo(t, "b", "10.88.0.12:0")
	r := newRig(t)
	at := r.open(newPort("web", a, b))[0]
	before, err := os.ReadFile(file)
	check(t, err)
	check(t, os.WriteFile(file, []byte("61000 61019"), 0o600))
	t.Cleanup(func() { check(t, os.WriteFile(file, before, 0o600)) })
	for range 18 { // each of which takes one of the 20 ports for its own connection
		c := connect(t, at)
		t.Cleanup(func() { _ = c.Close() })
		c.roundTrip(t)
	}
}
