package main

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// inNamespace moves a Service and its slice to another namespace.
func inNamespace(namespace string) (func(*corev1.Service), func(*discoveryv1.EndpointSlice)) {
	return func(s *corev1.Service) { s.Namespace = namespace }, func(s *discoveryv1.EndpointSlice) { s.Namespace = namespace }
}

func TestServicesOfOneNameInTwoNamespacesDoNotTouchEachOther(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b")
	apply := func(namespace, clusterIP, pod string, edit func(*corev1.Service)) {
		service, slice := inNamespace(namespace)
		c.apply(namespace, newService("redis", clusterIP, service, edit), newSlice("redis", []string{pod}, slice))
	}
	plain := func(*corev1.Service) {}
	apply("ns1", "10.96.0.11", podA, plain)
	apply("ns2", "10.96.0.12", podB, plain)
	p := c.start()

	first := askSteadily(t, c.Outside, "10.96.0.11:80", 20*time.Millisecond)
	second := askSteadily(t, c.Outside, "10.96.0.12:80", 20*time.Millisecond)
	for i := range 20 {
		// Each edit is one that makes new rules, another policy and a new endpoint list.
		edit := plain
		if i%4 < 2 {
			edit = func(s *corev1.Service) {
				sticky(60)(s)
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "more", Port: 81})
			}
		}
		if i%2 == 0 {
			apply("ns1", "10.96.0.11", podA, edit)
		} else {
			apply("ns2", "10.96.0.12", podB, edit)
		}
		time.Sleep(100 * time.Millisecond) // several requests between two edits
	}
	for pod, attempts := range map[string][]attempt{"pod-a": first.stop(), "pod-b": second.stop()} {
		if len(attempts) < 50 {
			t.Errorf("only %d requests were sent for %s", len(attempts), pod)
		}
		for _, a := range attempts {
			if a.who != pod || a.err != nil {
				t.Errorf("want an answer of %s: %v", pod, a)
			}
		}
	}
	services := map[string]string{"ns1/redis:http": podA + ":8080", "ns2/redis:http": podB + ":8080"}
	for _, r := range p.records(100) {
		if services[r.Service] != r.Backend {
			t.Errorf("the log has a connection of %s to %s", r.Service, r.Backend)
		}
	}
}

// dnsPorts gives a Service the two ports of a DNS server, with one nodePort number.
func dnsPorts(protocols ...corev1.Protocol) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports = nil
		for _, protocol := range protocols {
			name := "dns-" + strings.ToLower(string(protocol))
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: name, Port: 53, NodePort: 30053, Protocol: protocol})
		}
	}
}

// dnsSlice gives a slice the ports of a DNS server.
func dnsSlice(s *discoveryv1.EndpointSlice) {
	s.Ports = nil
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{
			Name: new("dns-" + strings.ToLower(string(protocol))), Port: new(int32(8080)), Protocol: &protocol,
		})
	}
}

func TestTCPAndUDPAreServedOnOneNodePortNumber(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	answerUDP(t, c.Pod("pod-a").Namespace, "[::]:8080", "pod-a")
	c.apply("slice", newSlice("dns", []string{podA}, dnsSlice))
	c.apply("dns", newService("dns", "10.96.0.53", dnsPorts(corev1.ProtocolUDP, corev1.ProtocolTCP)))
	c.start("--iptables-sync-period", "1s")
	addresses := []string{"10.96.0.53:53", "172.20.1.2:30053", "172.20.1.5:30053"}
	for _, from := range []*lab.Namespace{c.Outside, c.Node, c.Pod("client").Namespace, c.Pod("pod-a").Namespace} {
		for _, address := range addresses {
			wantAnswer(t, from, address, "pod-a")
			if answer, err := askUDP(from, address); answer != "pod-a" {
				t.Errorf("from %s by UDP, %s answers %q (%v)", from.Name, address, answer, err)
			}
		}
	}
	connection := hold(t, c.Outside, addresses[1])

	c.apply("dns", newService("dns", "10.96.0.53", dnsPorts(corev1.ProtocolTCP)))
	c.apply("other", newService("other", "10.96.0.55"), newSlice("other", []string{podA}))
	soon(t, c.Outside, "10.96.0.55:80", "pod-a") // both edits are live
	for _, address := range addresses {
		wantAnswer(t, c.Outside, address, "pod-a")
	}
	wantUDPRefused(t, c.Outside, addresses[1])
	if who, err := connection.ask(); who != "pod-a" {
		t.Errorf("the connection held over the edits is answered by %q (%v)", who, err)
	}
}

// wantNotices demands that the program said just so many lines about something.
func wantNotices(t *testing.T, p *program, about string, want int) {
	t.Helper()
	var lines []string
	for line := range strings.Lines(p.said.text()) {
		if strings.Contains(line, about) {
			lines = append(lines, line)
		}
	}
	if len(lines) != want {
		t.Errorf("said %d lines about %s, want %d: %q", len(lines), about, want, lines)
	}
}

// answerUDP runs a program that answers on a UDP port.
func answerUDP(t *testing.T, in *lab.Namespace, address, answer string) {
	t.Helper()
	serveUDP(t, in, address, func(conn net.PacketConn, from net.Addr, _ []byte) { _, _ = conn.WriteTo([]byte(answer), from) })
}

// wantUDPRefused sends until the kernel answers that the port is closed, which it does
// not more often than once a second to a machine (icmp_ratelimit, icmp(7)).
func wantUDPRefused(t *testing.T, from *lab.Namespace, address string) {
	t.Helper()
	conn, err := from.Dial("udp", address, time.Second)
	check(t, err)
	defer conn.Close()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		check(t, conn.SetDeadline(time.Now().Add(500*time.Millisecond)))
		_, _ = conn.Write([]byte("?"))
		n, err := conn.Read(make([]byte, 100))
		if errors.Is(err, syscall.ECONNREFUSED) {
			return
		}
		if err == nil {
			t.Errorf("%s answers %d bytes", address, n)
			return
		}
	}
	t.Errorf("%s does not refuse", address)
}

// askUDP sends one datagram and returns the one that comes back.
func askUDP(from *lab.Namespace, address string) (string, error) {
	conn, err := from.Dial("udp", address, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprint(conn, "?"); err != nil {
		return "", err
	}
	buffer := make([]byte, 100)
	n, err := conn.Read(buffer)
	return string(buffer[:n]), err
}
