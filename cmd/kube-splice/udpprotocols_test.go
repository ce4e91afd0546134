package main

import (
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// One number is two Service ports when it is of both protocols: what becomes of one is
// nothing to the other.
func TestUDPAndTCPOfOneNumberAreEditedApart(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b")
	c.serveUDPAll("pod-a", "pod-b")
	both := []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}
	publish := func(protocols ...corev1.Protocol) {
		c.apply("dns", newService("dns", "10.96.0.53", dnsPorts(protocols...)))
	}
	c.apply("slice", newSlice("dns", []string{podA}, dnsSlice))
	publish(both...)
	c.start()
	connection, client := hold(t, c.Outside, "172.20.1.2:30053"), udpClient(t, c.Outside, "172.20.1.2:30053")
	stop := askUDPSteadily(t, c.client(), udpAddress)
	for range 10 {
		publish(corev1.ProtocolUDP)
		within(t, time.Second, func() error { return noRuleOf(c, "default/dns:dns-tcp") })
		publish(both...)
		soon(t, c.Outside, udpAddress, "pod-a")
	}
	stop()
	steady := askSteadily(t, c.client(), udpAddress, 50*time.Millisecond)
	for range 10 {
		publish(corev1.ProtocolTCP)
		within(t, time.Second, func() error { return noRuleOf(c, "default/dns:dns-udp") })
		if answer, err := askBy(client, "?", 50*time.Millisecond); err == nil {
			t.Errorf("the UDP port answers %q", answer)
		}
		publish(both...)
		within(t, time.Second, func() error { return answeredOn(client, "pod-a") })
	}
	for _, a := range steady.stop() {
		if a.who != "pod-a" {
			t.Errorf("by TCP: %v", a)
		}
	}
	if who, err := connection.ask(); who != "pod-a" {
		t.Errorf("a connection held over the edits is answered by %q (%v)", who, err)
	}
}

// askUDPSteadily asks on one socket until stop, which demands that pod-a has answered
// every question.
func askUDPSteadily(t *testing.T, from *lab.Namespace, address string) (stop func()) {
	t.Helper()
	client := udpClient(t, from, address)
	stopped, failed := make(chan struct{}), make(chan error, 1)
	go func() {
		for number := 0; ; number++ {
			select {
			case <-stopped:
				failed <- nil
				return
			case <-time.After(5 * time.Millisecond):
			}
			if who, err := askBy(client, fmt.Sprint(number), patience); who != fmt.Sprint("pod-a ", number) {
				failed <- fmt.Errorf("by UDP question %d is answered by %q (%w), want pod-a", number, who, err)
				return
			}
		}
	}()
	end := sync.OnceFunc(func() {
		close(stopped)
		if err := <-failed; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return end
}

func TestUDPServicesOfOneNameInTwoNamespacesAreEditedApart(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	pods := map[string]string{"ns1": "pod-a", "ns2": "pod-b"}
	c.serveUDPAll("pod-a", "pod-b")
	addresses := map[string]string{"ns1": "10.96.0.71", "ns2": "10.96.0.72"}
	publish := func(namespace string, edit ...func(*corev1.Service)) {
		service, slice := inNamespace(namespace)
		c.apply(namespace, newService("dns", addresses[namespace], append(edit, udp, service)...),
			newUDPSlice("dns", []string{c.Pod(pods[namespace]).Addr4.String()}, slice))
	}
	publish("ns1")
	publish("ns2")
	p := c.start()
	for round := range 20 {
		edited := []string{"ns1", "ns2"}[round%2]
		publish(edited, sticky(int32(100+round)))
		for namespace, pod := range pods {
			client := udpClient(t, c.client(), addresses[namespace]+":53")
			if who, err := askBy(client, "1", patience); who != pod+" 1" {
				t.Errorf("in round %d, %s is answered by %q (%v), want %s", round, namespace, who, err, pod)
			}
		}
	}
	for _, r := range p.finish(40) {
		if want := map[string]string{"ns1/dns:dns-udp": podA + ":8080", "ns2/dns:dns-udp": podB + ":8080"}[r.Service]; r.Backend != want {
			t.Errorf("the log has a flow of %s to %s", r.Service, r.Backend)
		}
	}
}
