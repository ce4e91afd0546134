package proxy_test

import (
	"net"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
)

// Addresses at which the tests with rules ask, and from which. They are put on the
// loopback interface, only to have a route.
const (
	clusterIP    = "10.96.0.10"
	loadBalancer = "10.96.0.50"
	externalIP   = "10.96.0.60"
	inside       = "10.88.0.12"
	outside      = "10.88.0.13"
)

// newRuledRig returns a Proxy that serves only whom rules lead to it.
func newRuledRig(t *testing.T) *rig {
	t.Helper()
	for _, addr := range []string{clusterIP, loadBalancer, externalIP} {
		check(t, addAddress("lo", addr+"/32"))
		t.Cleanup(func() { check(t, removeAddress("lo", addr+"/32")) })
	}
	t.Cleanup(func() { flush(t) })
	return newRig(t, ruled)
}

// flush removes the rules.
func flush(t testing.TB) {
	t.Helper()
	nat(t, "iptables", "-F", "OUTPUT")
	nat(t, "ip6tables", "-F", "OUTPUT")
}

// nat changes the nat table with one of the iptables programs.
func nat(t testing.TB, program string, args ...string) {
	t.Helper()
	if out, err := exec.Command(program, append([]string{"-w", "-t", "nat"}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", program, args, err, out)
	}
}

// openRuled opens the ports and makes the rules that lead clients to their listeners;
// the clients outside are those with the address outside.
func (r *rig) openRuled(snap *service.Snapshot) proxy.Opened {
	r.t.Helper()
	opened := r.Open(snap)
	if opened.Failed != 0 {
		r.t.Fatalf("%d could not be opened: %s", opened.Failed, r.log.String())
	}
	flush(r.t)
	for _, b := range opened.Bindings {
		program, node := "iptables", netip.MustParseAddr("10.88.0.11")
		if b.Name.Family == service.IPv6 {
			program, node = "ip6tables", netip.MustParseAddr("fd00:88::11")
		}
		rule := []string{"-A", "OUTPUT", "-p", string(b.Name.Protocol), "--dport", itoa(b.Portal.Number)}
		if b.Portal.Kind == service.NodePort {
			rule = append(rule, "-d", node.String())
		} else {
			rule = append(rule, "-d", b.Portal.Addr.String())
		}
		switch b.Portal.Clients {
		case service.Inside:
			rule = append(rule, "!", "-s", outside)
		case service.Outside:
			rule = append(rule, "-s", outside)
		}
		nat(r.t, program, append(rule, "-j", "DNAT", "--to-destination", netip.AddrPortFrom(node, b.Listener.Port()).String())...)
	}
	r.Prune()
	return opened
}

// ask connects from an address to an echo server behind a Service.
func ask(from, at string) (*client, error) {
	dialer := net.Dialer{Timeout: 5 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
	conn, err := dialer.Dial("tcp", at)
	if err != nil {
		return nil, err
	}
	return greeted(conn)
}

// wantAnswers asks several times and checks who of the servers answered.
func wantAnswers(t testing.TB, from, at string, want ...string) {
	t.Helper()
	seen := map[string]bool{}
	for range 6 {
		c, err := ask(from, at)
		if err != nil {
			t.Errorf("from %s to %s: %v", from, at, err)
			return
		}
		seen[c.name] = true
		_ = c.Close()
	}
	for _, name := range want {
		if !seen[name] {
			t.Errorf("from %s to %s: %s never answered", from, at, name)
		}
	}
	if len(seen) != len(want) {
		t.Errorf("from %s to %s: %v answered, want %v", from, at, seen, want)
	}
}
