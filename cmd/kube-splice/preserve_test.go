package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// What the connection log says of how a backend knows the client.
const (
	preserved = "preserved"
	hidden    = "hidden"
)

// peerSeen asks at an address and returns which pod answers, and whom it takes for its
// client.
func peerSeen(from *lab.Namespace, address string) (pod, peer string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Second)
	defer cancel()
	body, err := dialogue(ctx, from, "tcp", address, func(conn net.Conn) (string, error) {
		if _, err := fmt.Fprintf(conn, "GET / HTTP/1.0\r\nHost: %s\r\n\r\n", address); err != nil {
			return "", err
		}
		answer, err := io.ReadAll(conn)
		_, body, _ := strings.Cut(string(answer), "\r\n\r\n")
		return strings.ReplaceAll(strings.TrimSpace(body), " ", "|"), err
	})
	pod, seen, _ := strings.Cut(body, "|")
	if err != nil {
		return "", "", err
	}
	at, err := netip.ParseAddrPort(seen)
	return pod, at.Addr().String(), err
}

// wantSeen demands that a client is answered by a pod that sees that peer, and that the
// connection log says so.
func (p *program) wantSeen(from *lab.Namespace, address, peer, says string) {
	p.t.Helper()
	before := len(p.recordsNow())
	pod, seen, err := peerSeen(from, address)
	if err != nil || seen != peer {
		p.t.Errorf("%s at %s: %q sees %q (%v), want %s", from.Name, address, pod, seen, err, peer)
		return
	}
	r := p.records(before + 1)[before]
	if r.ClientIP != says || r.Close != "backend-closed" || r.Attempts != 1 {
		p.t.Errorf("%s at %s: logged %+v, want client_ip %q", from.Name, address, r, says)
	}
}

// recordsNow are the records that are there.
func (p *program) recordsNow() []record { return p.records(0) }

// The bridge's addresses, from which the node dials pods.
const bridgeIP, bridgeIPv6 = "10.244.1.1", "fd00:10:244:1::1"

// localCase is one family's Service with externalTrafficPolicy Local.
type localCase struct {
	addressing
	outside, bridge string
}

var localCases = []localCase{{byIPv4, lab.OutsideIP, bridgeIP}, {byIPv6, lab.OutsideIPv6, bridgeIPv6}}

func TestPolicyLocalShowsPodsTheClientOutside(t *testing.T) {
	forEachBackend(t, func(c *cluster, p *programs) {
		c.serveAll(localPod)
		for i, family := range localCases {
			local := policyCase{internal: inCluster, external: exLocal, endpoints: "local"}
			c.apply(fmt.Sprintf("policy-%d", i), local.objects(1, family.addressing)...)
		}
		program := c.launch(p.setup(), "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48")
		program.waitReady()
		for _, family := range localCases {
			for way, address := range family.ways(1) {
				seen, says := family.outside, preserved
				if way == "clusterIP" { // no way for clients outside, whoever takes it
					seen, says = family.bridge, hidden
				}
				program.wantSeen(c.Outside, address, seen, says)
				program.wantSeen(c.client(), address, family.bridge, hidden)
				program.wantSeen(c.Node, address, family.bridge, hidden)
			}
			direct := net.JoinHostPort(family.pods[localPod], "8080") // goes on as if we were not there
			if pod, seen, err := peerSeen(c.Outside, direct); seen != family.outside || err != nil {
				c.t.Errorf("%s at %s: %q sees %q (%v), want %s", c.Outside.Name, direct, pod, seen, err, family.outside)
			}
		}
	})
}

func TestAnnotationSaysWhoseAddressesArePreserved(t *testing.T) {
	t.Parallel()
	c := newTwoNodes(t)
	edit := func(where string, more ...func(*corev1.Service)) {
		local := policyCase{internal: inCluster, external: exCluster, endpoints: where}
		objects := local.objects(1, byIPv4)
		for _, change := range more {
			change(objects[0].(*corev1.Service))
		}
		c.apply("policy", objects...)
	}
	edit("local", annotations("preserve-client-ip", "true"))
	p := c.start()
	ways := byIPv4.ways(1)
	for _, address := range ways {
		p.wantSeen(c.Outside, address, lab.OutsideIP, preserved)
	}
	p.wantSeen(c.client(), ways["clusterIP"], bridgeIP, hidden) // their answers would go past us
	p.wantSeen(c.Pod(localPod).Namespace, ways["clusterIP"], bridgeIP, hidden)
	p.wantSeen(c.Node, ways["clusterIP"], bridgeIP, hidden)
	p.wantSeen(c.Node2, ways["nodePort"], lab.Node2IP, preserved)
	p.wantSeen(c.Pod(remotePod).Namespace, ways["clusterIP"], byIPv4.pods[remotePod], preserved)
	awaitSeries(t, c, "kubesplice_client_addresses_hidden_total 3")

	for _, other := range []struct {
		where string
		edits []func(*corev1.Service)
		peer  string
		says  string
	}{
		{"remote", []func(*corev1.Service){annotations("preserve-client-ip", "true")}, lab.NodeIP, hidden},
		{"local", nil, bridgeIP, hidden},
		{"local", []func(*corev1.Service){outsideOnly}, lab.OutsideIP, preserved},
		{"local", []func(*corev1.Service){outsideOnly, annotations("preserve-client-ip", "false")}, bridgeIP, hidden},
		{"local", []func(*corev1.Service){annotations("preserve-client-ip", "true")}, lab.OutsideIP, preserved},
	} {
		edit(other.where, other.edits...)
		soonSeen(t, c.Outside, ways["nodePort"], other.peer)
		p.wantSeen(c.Outside, ways["nodePort"], other.peer, other.says)
		if other.where == "remote" { // whose answers may take any way
			p.wantSeen(c.client(), ways["clusterIP"], lab.NodeIP, hidden)
		}
	}
}

// outsideOnly gives clients outside the endpoints of their node.
func outsideOnly(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = exLocal }

// soonSeen waits until a client is known by that address.
func soonSeen(t testing.TB, from *lab.Namespace, address, peer string) {
	t.Helper()
	eventually(t, func() error {
		pod, seen, err := peerSeen(from, address)
		if err == nil && seen != peer {
			err = fmt.Errorf("%s sees %s, want %s", pod, seen, peer)
		}
		return err
	})
}

// Backends that take PROXY headers from nodes would not take them from clients.
func TestHeadersTakeThePlaceOfThePreservedAddress(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll(localPod)
	local := policyCase{internal: inCluster, external: exLocal, endpoints: "local"}
	objects := local.objects(1, byIPv4)
	annotations("send-proxy-protocol", "v1")(objects[0].(*corev1.Service))
	c.apply("policy", objects...)
	p := c.start()
	conn, err := c.Outside.Dial("tcp", byIPv4.ways(1)["nodePort"], patience)
	check(t, err)
	check(t, conn.Close())
	if r := p.records(1)[0]; r.ClientIP != "proxy-protocol" {
		t.Errorf("logged %+v, want client_ip proxy-protocol", r)
	}
}

// route takes a pod off the bridge: it hangs on a veth of its own, to which the node has a
// route, and its router is whoever answers there, as with Calico.
func (c *cluster) route(name string, addr4, addr6 string) {
	c.t.Helper()
	veth := "veth-" + name
	for _, command := range []string{
		"ip link set " + veth + " nomaster",
		"ip addr add fe80::1/64 dev " + veth + " nodad",
		"ip route add " + addr4 + "/32 dev " + veth,
		"ip -6 route add " + addr6 + "/128 dev " + veth,
		"sysctl -qw net.ipv4.conf." + veth + ".proxy_arp=1",
		"sysctl -qw net.ipv4.neigh." + veth + ".proxy_delay=0",
		"sysctl -qw net.ipv4.conf." + veth + ".rp_filter=1",
	} {
		c.onNode(strings.Fields(command)...)
	}
	for _, command := range []string{
		"ip addr flush dev eth0 scope global",
		"ip addr add " + addr4 + "/32 dev eth0",
		"ip addr add " + addr6 + "/128 dev eth0 nodad",
		"ip route add 169.254.1.1 dev eth0",
		"ip route replace default via 169.254.1.1 dev eth0",
		"ip -6 route replace default via fe80::1 dev eth0",
	} {
		c.inPod(name, strings.Fields(command)...)
	}
}

func TestPodsOnRoutedVethsSeeTheClient(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	client := c.Pod("client")
	c.route(localPod, podA, podA6)
	c.route("client", client.Addr4.String(), client.Addr6.String())
	c.serveAll(localPod)
	c.serveDatagrams(localPod)
	for i, family := range localCases {
		local := policyCase{internal: inCluster, external: exLocal, endpoints: "local"}
		tcp, udp := local.objects(1, family.addressing), overUDP(local.objects(2, family.addressing))
		annotations("preserve-client-ip", "true")(tcp[0].(*corev1.Service))
		annotations("preserve-client-ip", "true")(udp[0].(*corev1.Service))
		c.apply(fmt.Sprintf("policy-%d", i), append(tcp, udp...)...)
	}
	p := c.start("--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48", "--bind-address", lab.NodeIP)
	p.wantSeen(c.Outside, byIPv4.ways(1)["nodePort"], lab.OutsideIP, preserved)
	p.wantSeen(c.Outside, byIPv6.ways(1)["nodePort"], lab.OutsideIPv6, preserved)
	p.wantSeen(client.Namespace, byIPv4.ways(1)["clusterIP"], client.Addr4.String(), preserved)
	p.wantSeen(client.Namespace, byIPv6.ways(1)["clusterIP"], client.Addr6.String(), preserved)
	wantSeenUDP(t, c.Outside, byIPv4.ways(2)["nodePort"], lab.OutsideIP)
	wantSeenUDP(t, c.Outside, byIPv6.ways(2)["nodePort"], lab.OutsideIPv6)
	wantSeenUDP(t, client.Namespace, byIPv4.ways(2)["clusterIP"], client.Addr4.String())
}

// A pod that is asked for a port where nobody listens says so to the client's address.
func TestRefusalOfAPodThatSeesTheClientComesBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	local := policyCase{internal: inCluster, external: exLocal, endpoints: "local"}
	c.apply("policy", local.objects(1, byIPv4)...)
	p := c.start("--dial-timeout", "30s")
	watch := lab.StartStopwatch()
	if pod, _, err := peerSeen(c.Outside, byIPv4.ways(1)["nodePort"]); err == nil {
		t.Errorf("answered by %s", pod)
	}
	r := p.records(1)[0]
	if r.Close != "dial-failed" || !strings.Contains(r.Error, syscall.ECONNREFUSED.Error()) || r.Attempts != 1 {
		t.Errorf("logged %+v after %v, want refused at the first try", r, watch.Elapsed())
	}
}

// A pod whose answers to the client go elsewhere, or nowhere, is reached all the same.
func TestPodThatCannotAnswerTheClientsAddressIsDialledByTheNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll(localPod)
	c.inPod(localPod, "ip", "route", "add", "blackhole", lab.OutsideIP)
	local := policyCase{internal: inCluster, external: exLocal, endpoints: "local"}
	c.apply("policy", local.objects(1, byIPv4)...)
	p := c.start()
	pod, seen, err := peerSeen(c.Outside, byIPv4.ways(1)["nodePort"])
	if pod != localPod || seen != bridgeIP || err != nil {
		t.Errorf("%q sees %q (%v), want %s", pod, seen, err, bridgeIP)
	}
	if r := p.records(1)[0]; r.ClientIP != hidden || r.Attempts != 2 {
		t.Errorf("logged %+v, want hidden at the second try", r)
	}
}

// The ports of a client's address may run out, as those of the node's may.
func TestClientWhoseAddressHasNoPortLeftIsServedByTheNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll(localPod)
	c.onNode("sysctl", "-qw", "net.ipv4.ip_local_port_range=50000 50001")
	local := policyCase{internal: inCluster, external: exLocal, endpoints: "local"}
	c.apply("policy", local.objects(1, byIPv4)...)
	p := c.start("--proxy-port-range", "40000-40009", "--drain-timeout", "0s")
	const most = 3
	for range most {
		if who, err := hold(t, c.Outside, byIPv4.ways(1)["nodePort"]).ask(); who != localPod {
			t.Errorf("answered by %q (%v), want %s", who, err, localPod)
		}
	}
	says := map[string]int{}
	for _, r := range p.finish(most) {
		says[r.ClientIP]++
	}
	if says[preserved] != 2 || says[hidden] != 1 {
		t.Errorf("logged %v, want 2 preserved and 1 hidden", says)
	}
}

// The client that a trusted load balancer names may be preserved too.
func TestClientOfAPROXYHeaderIsPreserved(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll(localPod)
	local := policyCase{internal: inCluster, external: exLocal, endpoints: "local"}
	objects := local.objects(1, byIPv4)
	wantsHeaders(objects[0].(*corev1.Service))
	c.apply("policy", objects...)
	p := c.start(trustOutside)
	for i, client := range []struct{ address, seen, says string }{
		{"198.51.100.7:5555", "198.51.100.7", preserved},
		{"127.0.0.1:5555", bridgeIP, hidden},
		{lab.NodeIP + ":5555", bridgeIP, hidden},
		{"10.244.1.50:5555", bridgeIP, hidden}, // on the bridge
		{"[2001:db8::7]:5555", bridgeIP, hidden},
		{"169.254.169.254:5555", bridgeIP, hidden},
	} {
		conn, err := c.Outside.Dial("tcp", byIPv4.ways(1)["nodePort"], patience)
		check(t, err)
		check(t, conn.SetDeadline(time.Now().Add(patience)))
		server := farServer
		if strings.HasPrefix(client.address, "[") {
			server = farServer6
		}
		_, err = io.WriteString(conn, headerOf(t, 2, client.address, server, 0)+"GET / HTTP/1.0\r\n\r\n")
		check(t, err)
		answer, err := io.ReadAll(conn)
		check(t, err)
		check(t, conn.Close())
		if !strings.Contains(string(answer), "pod-a "+client.seen+":") {
			t.Errorf("%s: %q, want %s", client.address, answer, client.seen)
		}
		if r := p.records(i + 1)[i]; r.ClientIP != client.says || r.Client != client.address {
			t.Errorf("%s: logged %+v, want %s", client.address, r, client.says)
		}
	}
}
