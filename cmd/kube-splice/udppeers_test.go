package main

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// udpAddress is where clients find the Service dns that publishUDP makes.
const udpAddress = "10.96.0.53:53"

// udp makes port 53 of UDP the only one of a Service.
func udp(s *corev1.Service) {
	s.Spec.Ports = []corev1.ServicePort{{Name: "dns-udp", Port: 53, Protocol: corev1.ProtocolUDP}}
}

// newUDPSlice is newSlice of endpoints that serve UDP.
func newUDPSlice(service string, endpoints []string, edit ...func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	return newSlice(service, endpoints, append([]func(*discoveryv1.EndpointSlice){dnsSlice}, edit...)...)
}

// publishUDP applies the Service dns, of UDP alone, with endpoints at the addresses.
func (c *cluster) publishUDP(endpoints ...string) {
	c.t.Helper()
	c.apply("slice", newUDPSlice("dns", endpoints))
	c.apply("dns", newService("dns", "10.96.0.53", udp, nodePort(30053)))
}

// serveUDP has every datagram to an address of a machine handled, one after the other,
// until the test ends or until stop.
func serveUDP(t testing.TB, in *lab.Namespace, address string, handle func(conn net.PacketConn, from net.Addr, data []byte)) (stop func()) {
	t.Helper()
	conn, err := in.ListenPacket("udp", address)
	check(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buffer := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			handle(conn, from, buffer[:n])
		}
	}()
	stop = sync.OnceFunc(func() {
		_ = conn.Close()
		<-ended
	})
	t.Cleanup(stop)
	return stop
}

// echoUDP sends every datagram back.
func echoUDP(conn net.PacketConn, from net.Addr, data []byte) { _, _ = conn.WriteTo(data, from) }

// namesItself answers every datagram with a name and the datagram.
func namesItself(name string) func(net.PacketConn, net.Addr, []byte) {
	return func(conn net.PacketConn, from net.Addr, data []byte) {
		_, _ = conn.WriteTo(append([]byte(name+" "), data...), from)
	}
}

// serveUDPAll has the pods answer with their names on port 8080.
func (c *cluster) serveUDPAll(pods ...string) {
	c.t.Helper()
	for _, pod := range pods {
		serveUDP(c.t, c.Pod(pod).Namespace, ":8080", namesItself(pod))
	}
}

// sent is a datagram as a backend received it.
type sent struct {
	text string
	from net.Addr
	conn net.PacketConn
}

// received is what the backends of receiving got.
type received chan sent

// receiving is a backend on port 8080 of a pod that leaves all answers to the test.
func (c *cluster) receiving(pod string) received {
	c.t.Helper()
	datagrams := make(received, 10000)
	serveUDP(c.t, c.Pod(pod).Namespace, ":8080", func(conn net.PacketConn, from net.Addr, data []byte) {
		datagrams <- sent{string(data), from, conn}
	})
	return datagrams
}

// take waits for the next datagram.
func (r received) take(t testing.TB) sent {
	t.Helper()
	select {
	case s := <-r:
		return s
	case <-time.After(patience):
		t.Fatal("the backend receives nothing")
		panic("unreachable")
	}
}

// answer sends a datagram to where s came from.
func (s sent) answer(t testing.TB, text string) {
	t.Helper()
	_, err := s.conn.WriteTo([]byte(text), s.from)
	check(t, err)
}

// udpClient opens a socket that hears nobody but the address it asks. It lives until
// the test ends.
func udpClient(t testing.TB, from *lab.Namespace, address string) net.Conn {
	t.Helper()
	conn, err := from.Dial("udp", address, patience)
	check(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// hear waits for the next datagram.
func hear(client net.Conn, wait time.Duration) (string, error) {
	if err := client.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return "", err
	}
	buffer := make([]byte, 1<<16)
	n, err := client.Read(buffer)
	return string(buffer[:n]), err
}

// askBy sends a datagram and returns the next that comes back.
func askBy(client net.Conn, text string, wait time.Duration) (string, error) {
	if _, err := client.Write([]byte(text)); err != nil {
		return "", err
	}
	return hear(client, wait)
}

// send sends a datagram.
func send(t testing.TB, client net.Conn, text string) {
	t.Helper()
	_, err := client.Write([]byte(text))
	check(t, err)
}

// wantHeard demands that the next datagram is a text.
func wantHeard(t testing.TB, client net.Conn, text string) {
	t.Helper()
	if got, err := hear(client, patience); got != text {
		t.Fatalf("%v: heard %.40q (%v), want %.40q", client.RemoteAddr(), got, err, text)
	}
}

// answeredOn returns an error unless a pod answers, soon. What came too late for
// questions asked before is passed over.
func answeredOn(client net.Conn, pod string) error {
	question := fmt.Sprint(time.Now().UnixNano())
	answer, err := askBy(client, question, 100*time.Millisecond)
	for err == nil && answer != pod+" "+question {
		if answer, err = hear(client, 100*time.Millisecond); err != nil {
			return fmt.Errorf("%v: no answer by %s: %w", client.RemoteAddr(), pod, err)
		}
	}
	return err
}
