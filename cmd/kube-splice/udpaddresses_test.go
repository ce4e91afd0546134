package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// udpEverywhere publishes an echo server by every address of both families, and
// returns who is to reach which.
func (c *cluster) udpEverywhere() []wayIn {
	c.t.Helper()
	serveUDP(c.t, c.Pod("pod-a").Namespace, ":8080", echoUDP)
	balanced := func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.96.0.50"}, {IP: "fd00:10:96::50"}}
	}
	c.apply("dns", newService("dns", "10.96.0.53", udp, nodePort(30053), withIPv6("fd00:10:96::53"), balanced,
		externalIPs("10.96.0.60", lab.NodeSecondIP, "fd00:10:96::60")))
	c.apply("slices", newUDPSlice("dns", []string{podA}), newUDPSlice("dns", []string{podA6}, ipv6))
	everywhere := []*lab.Namespace{c.client(), c.Node, c.Outside, c.Pod("pod-a").Namespace}
	var ways []wayIn
	for _, address := range []string{
		udpAddress, "10.96.0.50:53", "10.96.0.60:53", "172.20.1.5:53", "172.20.1.2:30053", "172.20.1.5:30053", "10.244.1.1:30053",
		"[fd00:10:96::53]:53", "[fd00:10:96::50]:53", "[fd00:10:96::60]:53",
		"[fd00:172:20:1::2]:30053", "[fd00:172:20:1::5]:30053", "[fd00:10:244:1::1]:30053",
	} {
		ways = append(ways, wayIn{address, everywhere})
	}
	for _, address := range []string{"127.0.0.1:30053", "127.0.0.2:30053", "[::1]:30053"} {
		ways = append(ways, wayIn{address, []*lab.Namespace{c.Node}})
	}
	return ways
}

func TestUDPRepliesLeaveFromTheAddressTheClientUsed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	ways := c.udpEverywhere()
	p := c.start()
	asked := map[string]int{}
	for _, way := range ways {
		for _, from := range way.from {
			client := udpClient(t, from, way.address)
			if answer, err := askBy(client, "mine", patience); answer != "mine" {
				t.Errorf("from %s, %s answers %q (%v)", from.Name, way.address, answer, err)
			}
			if by, err := answerer(t, from, way.address); by != way.address {
				t.Errorf("from %s, what was sent to %s is answered by %q (%v)", from.Name, way.address, by, err)
			}
			asked[way.address] += 2
		}
	}
	for _, r := range p.finish(2 * (13*4 + 3)) {
		if asked[r.Original]--; r.Proto != "udp" || r.Close != "shutdown" || r.UpCount != 1 || r.DownCount != 1 || r.Up != 4 || r.Down != 4 {
			t.Errorf("logged %+v, want one datagram each way", r)
		}
	}
	for address, n := range asked {
		if n != 0 {
			t.Errorf("%s is missing %d times from the connection log, as the address asked", address, n)
		}
	}
}

// answerer asks by a socket that hears everybody, and returns who answers.
func answerer(t testing.TB, from *lab.Namespace, address string) (string, error) {
	t.Helper()
	conn, err := from.ListenPacket("udp", ":0")
	check(t, err)
	defer conn.Close()
	to, err := net.ResolveUDPAddr("udp", address)
	check(t, err)
	_, err = conn.WriteTo([]byte("hers"), to)
	check(t, err)
	check(t, conn.SetReadDeadline(time.Now().Add(patience)))
	_, by, err := conn.ReadFrom(make([]byte, 100))
	return fmt.Sprint(by), err
}

func TestUDPDatagramsOfEverySizePassWhole(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.udpEverywhere()
	c.start()
	random := rand.New(rand.NewPCG(1, 2))
	clients := map[string]*lab.Namespace{
		udpAddress: c.client(), "172.20.1.2:30053": c.Outside, "127.0.0.1:30053": c.Node,
		"[fd00:10:96::53]:53": c.client(), "[fd00:172:20:1::2]:30053": c.Outside,
	}
	for address, from := range clients {
		client := udpClient(t, from, address)
		for _, size := range []int{0, 1, 512, 513, 1472, 1473, 2048, 2049, 4096, 4097, 9000, 32768, 65506, 65507} {
			text := make([]byte, size)
			for i := range text {
				text[i] = byte(random.Uint32())
			}
			answer, err := askBy(client, string(text), patience)
			if err != nil || answer != string(text) {
				t.Errorf("%s: of %d bytes %d came back (%v), or others", address, size, len(answer), err)
			}
		}
	}
}
