package datagram_test

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kube-splice/kube-splice/proxy/datagram"
)

// redirected is what the tests of REDIRECT share: two Service addresses routed to this
// machine and led to its listener.
func redirected(t *testing.T) (*neighbor, *rig) {
	n := newNeighbor(t)
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	check(t, n.Do(func() error {
		_, services, _ := net.ParseCIDR("10.96.0.0/16")
		return netlink.RouteAdd(&netlink.Route{Dst: services, Gw: net.ParseIP("10.77.0.1")})
	}))
	for _, service := range []string{"10.96.0.10", "10.96.0.11"} {
		rules(t, "iptables -t nat -A PREROUTING -d "+service+" -p udp --dport 53 -j REDIRECT --to-ports "+port(r.listener.Addr()))
	}
	return n, r
}

func port(a netip.AddrPort) string { return strings.TrimPrefix(a.String(), a.Addr().String()+":") }

func TestRedirectedClientIsAnsweredByTheService(t *testing.T) {
	n, r := redirected(t)
	for _, service := range []string{"10.96.0.10:53", "10.96.0.11:53"} {
		client := n.dial(udpAddr(service))
		for _, size := range []int{0, 512, 1473, 9000, 65507} {
			text := strings.Repeat("x", size)
			ask(t, client, text, text)
		}
	}
	check(t, r.listener.Park())
	if !isRefused(t, n.dial(udpAddr("10.96.0.10:53"))) {
		t.Error("a parked listener does not refuse")
	}
	check(t, r.listener.Unpark())
	ask(t, n.dial(udpAddr("10.96.0.10:53")), "x", "x")
}

func TestOriginalDestinationIsFound(t *testing.T) {
	n, r := redirected(t)
	tracking, err := datagram.OpenConntrack()
	check(t, err)
	defer tracking.Close()
	for _, to := range []string{"10.96.0.10:53", "10.96.0.11:53", r.at("10.77.0.1").String()} { // the last finds the listener by itself
		ask(t, n.dial(udpAddr(to)), "x", "x")
		arrivals := r.arrivals()
		a := arrivals[len(arrivals)-1]
		original, err := tracking.Original(a.Client, a.Local)
		if err != nil || original.String() != to {
			t.Errorf("a datagram to %s is said to have been sent to %v (%v)", to, original, err)
		}
	}
	if _, err := tracking.Original(netip.MustParseAddrPort("10.77.0.2:1"), netip.MustParseAddrPort("10.77.0.1:1")); !errors.Is(err, datagram.ErrUntracked) {
		t.Errorf("an unknown flow: %v", err)
	}
}

func TestOriginalDestinationIsFoundInIPv6(t *testing.T) {
	n := newNeighbor(t)
	r := newRig(t, "::", datagram.Config{}, echo(t, "[::1]:0"))
	rules(t, "ip6tables -t nat -A PREROUTING -d fd00:77::5 -p udp --dport 53 -j REDIRECT --to-ports "+strings.TrimPrefix(r.listener.Addr().String(), "[::]:"))
	tracking, err := datagram.OpenConntrack()
	check(t, err)
	defer tracking.Close()
	ask(t, n.dial(udpAddr("[fd00:77::5]:53")), "x", "x")
	a := r.arrivals()[0]
	if original, err := tracking.Original(a.Client, a.Local); err != nil || original.String() != "[fd00:77::5]:53" {
		t.Errorf("found %v (%v)", original, err)
	}
	deleted, err := tracking.Forget(func(original, _ netip.AddrPort) bool { return original.String() == "[fd00:77::5]:53" })
	if err != nil || deleted != 1 {
		t.Errorf("deleted %d entries (%v), want 1", deleted, err)
	}
}

// A client that goes on is led by its old conntrack entry, whatever the rules say now.
func TestStaleEntriesAreDeletedAndNoOthers(t *testing.T) {
	n, r := redirected(t)
	tracking, err := datagram.OpenConntrack()
	check(t, err)
	defer tracking.Close()
	_, err = tracking.Forget(func(_, _ netip.AddrPort) bool { return true }) // of other tests
	check(t, err)
	pinned, bystander := n.dial(udpAddr("10.96.0.10:53")), n.dial(udpAddr("10.96.0.11:53"))
	ask(t, pinned, "x", "x")
	ask(t, bystander, "x", "x")

	other := r.listen(netip.MustParseAddr(anywhere))
	check(t, other.Unpark())
	out, err := exec.Command("iptables", "-w", "-t", "nat", "-I", "PREROUTING", "-d", "10.96.0.10", "-p", "udp", "--dport", "53", "-j", "REDIRECT", "--to-ports", port(other.Addr())).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	defer exec.Command("iptables", "-w", "-t", "nat", "-D", "PREROUTING", "1").Run()
	ask(t, pinned, "y", "y")
	if other.Traffic().DatagramsUp != 0 {
		t.Fatal("the client was not pinned to the old listener")
	}
	service := netip.MustParseAddrPort("10.96.0.10:53")
	deleted, err := tracking.Forget(func(original, now netip.AddrPort) bool {
		return original == service && now.Port() != other.Addr().Port()
	})
	if err != nil || deleted != 1 {
		t.Errorf("deleted %d entries (%v), want the one of the client", deleted, err)
	}
	ask(t, pinned, "z", "z")
	ask(t, bystander, "z", "z")
	if traffic := other.Traffic(); traffic.DatagramsUp != 1 {
		t.Errorf("the new listener saw %+v, want the client's datagram", traffic)
	}
	if n := len(r.arrivals()); n != 3 {
		t.Errorf("%d flows were made, want 3: the bystander keeps his", n)
	}
}
