package main

import (
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// lifelong are clients of both families with one socket for life each, which go on
// asking, so that the entries conntrack has of them never expire.
func (c *cluster) lifelong() map[string]net.Conn {
	c.t.Helper()
	clients := map[string]net.Conn{}
	for _, from := range []*lab.Namespace{c.client(), c.Node, c.Outside} {
		for _, address := range []string{udpAddress, "172.20.1.2:30053", "[fd00:10:96::53]:53", "[fd00:172:20:1::2]:30053"} {
			client := udpClient(c.t, from, address)
			clients[from.Name+" "+address] = client
			reports(c.t, client, 100*time.Millisecond)
		}
	}
	return clients
}

// allAnswered waits until a pod answers each of the clients.
func allAnswered(t *testing.T, clients map[string]net.Conn, pod string) {
	t.Helper()
	for who, client := range clients {
		within(t, time.Second, func() error {
			if err := answeredOn(client, pod); err != nil {
				return fmt.Errorf("from %s: %w", who, err)
			}
			return nil
		})
	}
}

// noneAnswered waits until nobody answers the clients.
func noneAnswered(t *testing.T, clients map[string]net.Conn) {
	t.Helper()
	for who, client := range clients {
		eventually(t, func() error {
			for answers := 0; answers < 30; answers++ {
				if _, err := hear(client, 400*time.Millisecond); err != nil { // four reports are not answered
					return nil
				}
			}
			return fmt.Errorf("%s is answered", who)
		})
	}
}

// Conntrack leads a client that goes on to where its first datagram went, whatever the
// rules say by now.
func TestUDPClientsThatGoOnAreServedThroughAllChanges(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveUDPAll("pod-a", "pod-b")
	p := c.start()
	clients := c.lifelong()
	noneAnswered(t, clients)

	service := func(edit ...func(*corev1.Service)) {
		edit = append([]func(*corev1.Service){udp, nodePort(30053), withIPv6("fd00:10:96::53")}, edit...)
		c.apply("dns", newService("dns", "10.96.0.53", edit...))
	}
	endpoints := func(v4, v6 string) {
		c.apply("slices", newUDPSlice("dns", []string{v4}, onNodes("node")), newUDPSlice("dns", []string{v6}, ipv6, onNodes("node")))
	}
	endpoints(podA, podA6)
	service() // it appears after its clients
	allAnswered(t, clients, "pod-a")
	endpoints(podB, podB6)
	allAnswered(t, clients, "pod-b")
	c.remove("dns")
	noneAnswered(t, clients)
	service() // at other listeners
	allAnswered(t, clients, "pod-b")
	service(func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal })
	allAnswered(t, clients, "pod-b")
	c.apply("dns", newService("dns", "10.96.0.77", udp, nodePort(30077), withIPv6("fd00:10:96::77")))
	noneAnswered(t, clients)
	service()
	allAnswered(t, clients, "pod-b")

	p.kill(syscall.SIGKILL)
	noneAnswered(t, clients)
	p = c.start() // with other listener ports
	allAnswered(t, clients, "pod-b")
	p.kill(syscall.SIGTERM)
	noneAnswered(t, clients)
	c.start()
	allAnswered(t, clients, "pod-b")
}
