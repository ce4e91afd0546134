package proxy_test

import (
	"net"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
)

// redirected makes a namespace whose rules lead 10.96.0.10:80 and [fd00:96::10]:80
// to port 8080, and a listener there.
func redirected(t *testing.T, network, address string) (*lab.Namespace, net.Listener) {
	t.Helper()
	ns, err := lab.NewNamespace("redirected")
	check(t, err)
	t.Cleanup(func() { _ = ns.Close() })
	check(t, ns.Do(func() error { return addAddress("lo", "10.88.0.21/32") }))
	check(t, ns.Do(func() error { return addAddress("lo", "fd00:88::21/128") }))
	check(t, ns.Do(func() error { return addAddress("lo", "10.96.0.10/32") })) // only to have a route
	check(t, ns.Do(func() error { return addAddress("lo", "fd00:96::10/128") }))
	for _, rule := range [][]string{
		{"iptables", "-t", "nat", "-A", "OUTPUT", "-p", "tcp", "-d", "10.96.0.10", "--dport", "80", "-j", "DNAT", "--to-destination", "10.88.0.21:8080"},
		{"ip6tables", "-t", "nat", "-A", "OUTPUT", "-p", "tcp", "-d", "fd00:96::10", "--dport", "80", "-j", "DNAT", "--to-destination", "[fd00:88::21]:8080"},
	} {
		if _, err := ns.Output(exec.Command(rule[0], rule[1:]...)); err != nil {
			t.Fatal(err)
		}
	}
	ln, err := ns.Listen(network, address)
	check(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	return ns, ln
}

func TestOriginalDestinationInEveryFamily(t *testing.T) {
	for _, c := range []struct{ name, network, listen, dial, want string }{
		{"IPv4", "tcp4", "0.0.0.0:8080", "10.96.0.10:80", "10.96.0.10:80"},
		{"IPv6", "tcp6", "[::]:8080", "[fd00:96::10]:80", "[fd00:96::10]:80"},
		{"IPv4 mapped into a dual-stack socket", "tcp", "[::]:8080", "10.96.0.10:80", "10.96.0.10:80"},
		{"IPv6 on a dual-stack socket", "tcp", "[::]:8080", "[fd00:96::10]:80", "[fd00:96::10]:80"},
		{"IPv4 without a rule", "tcp4", "0.0.0.0:8080", "10.88.0.21:8080", "10.88.0.21:8080"},
		{"IPv6 without a rule", "tcp6", "[::]:8080", "[fd00:88::21]:8080", "[fd00:88::21]:8080"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns, ln := redirected(t, c.network, c.listen)
			client, err := ns.Dial("tcp", c.dial, 5*time.Second)
			check(t, err)
			defer func() { _ = client.Close() }()
			conn, err := ln.Accept()
			check(t, err)
			defer func() { _ = conn.Close() }()
			raw, err := conn.(*net.TCPConn).SyscallConn()
			check(t, err)
			var got netip.AddrPort
			controlErr := raw.Control(func(fd uintptr) {
				got, err = proxy.OriginalDestination(int(fd), service.FamilyOf(netip.MustParseAddrPort(c.want).Addr()))
			})
			check(t, controlErr)
			if err != nil || got != netip.MustParseAddrPort(c.want) {
				t.Errorf("original destination %v (%v), want %s", got, err, c.want)
			}
		})
	}
}

func TestClientThatNoRuleLedHereIsResetAndCounted(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	r := newRig(t, ruled)
	at := r.open(newPort("web", a))[0]
	wantReset(t, at)
	rec := r.record()
	if rec.Close != proxy.RefusedDirect || rec.Attempts != 0 || r.Counts().RefusedDirect != 1 {
		t.Errorf("record %+v, counts %+v; want refused-direct, no try", rec, r.Counts())
	}
}
