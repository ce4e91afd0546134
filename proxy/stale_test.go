package proxy_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/service"
)

// Conntrack goes on leading a client as the rules had it at its first datagram. Here
// each client keeps its socket, whatever becomes of its Service.

// wantNoUDP demands that nobody answers.
func wantNoUDP(t testing.TB, c net.Conn) {
	t.Helper()
	if got, err := askUDP(c, "?", 300*time.Millisecond); err == nil {
		t.Fatalf("%v answered %q", c.RemoteAddr(), got)
	}
}

// track makes the kernel track connections although no rule leads any away yet.
func track(t testing.TB) {
	t.Helper()
	for _, program := range []string{"iptables", "ip6tables"} {
		nat(t, program, "-A", "OUTPUT", "-p", "udp", "--dport", "9999", "-j", "REDIRECT")
	}
}

func TestClientsThatWereThereBeforeAreLedToTheListener(t *testing.T) {
	const clusterIPv6 = "fd00:10:96::10"
	check(t, addAddress("lo", clusterIPv6+"/128"))
	t.Cleanup(func() { check(t, removeAddress("lo", clusterIPv6+"/128")) })
	r := newRuledRig(t)
	track(t)
	v4 := newUDPPort("dns", udpServer(t, "a"))
	v6 := newUDPPort("dns", udpServerAt(t, "a6", "[fd00:88::11]:0"))
	v6.Name.Family, v6.ClusterIP = service.IPv6, netip.MustParseAddr(clusterIPv6)
	client, client6 := udpClient(t, inside, clusterIP+":80"), udpClient(t, "fd00:88::11", "["+clusterIPv6+"]:80")
	for range 2 {
		wantNoUDP(t, client)
		wantNoUDP(t, client6)
		r.openRuled(&service.Snapshot{Ports: []*service.Port{v4, v6}})
		wantUDP(t, client, "a")
		wantUDP(t, client6, "a6")
		r.openRuled(&service.Snapshot{}) // the Service goes, and with it the listener
	}
}

func TestClientsAreLedByThePortalsThatTheirServiceHasNow(t *testing.T) {
	r := newRuledRig(t)
	track(t)
	p := newUDPPort("dns", udpServer(t, "a"))
	more := *p
	more.ExternalIPs, more.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr(externalIP)}, []netip.Addr{netip.MustParseAddr(loadBalancer)}
	more.NodePort = 30053
	clients := []net.Conn{
		udpClient(t, inside, externalIP+":80"), udpClient(t, inside, loadBalancer+":80"), udpClient(t, inside, "10.88.0.11:30053"),
	}
	steady := udpClient(t, inside, clusterIP+":80")
	for range 2 {
		r.openRuled(&service.Snapshot{Ports: []*service.Port{p}})
		wantUDP(t, steady, "a")
		for _, c := range clients {
			wantNoUDP(t, c)
		}
		r.openRuled(&service.Snapshot{Ports: []*service.Port{&more}})
		for _, c := range append(clients, steady) {
			wantUDP(t, c, "a")
		}
	}
	if n := r.FlowCounts().Accepted; n < 4 || n > 7 { // steady goes on with its flow
		t.Errorf("%d flows were asked for", n)
	}
}

func TestClientsOfAnEarlierProxyAreLedToTheListener(t *testing.T) {
	r := newRuledRig(t)
	const gone = "10.99.0.7:53" // a pod on another node
	portals := []string{clusterIP + ":80", "10.88.0.11:30053"}
	clients := make([]net.Conn, len(portals))
	for i, at := range portals {
		portal := netip.MustParseAddrPort(at)
		nat(t, "iptables", "-A", "OUTPUT", "-p", "udp", "-d", portal.Addr().String(), "--dport", itoa(portal.Port()), "-j", "DNAT", "--to-destination", gone)
		clients[i] = udpClient(t, inside, at)
		wantNoUDP(t, clients[i])
	}
	p := newUDPPort("dns", udpServer(t, "a"))
	p.NodePort = 30053
	r.openRuled(&service.Snapshot{Ports: []*service.Port{p}})
	for _, c := range clients {
		wantUDP(t, c, "a")
	}
}
