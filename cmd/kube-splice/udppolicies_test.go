package main

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// newTwoUDPNodes is newTwoNodes with pods that serve UDP.
func newTwoUDPNodes(t *testing.T) *cluster {
	t.Helper()
	l, err := lab.New(lab.Config{})
	check(t, err)
	t.Cleanup(func() { check(t, l.Close()) })
	c := &cluster{Lab: l, t: t, manifests: t.TempDir()}
	c.serveUDPAll(localPod, remotePod)
	c.unlimitedICMP()
	return c
}

// overUDP makes the Service ports and slices among objects ones of UDP.
func overUDP(objects []any) []any {
	for _, object := range objects {
		switch o := object.(type) {
		case *corev1.Service:
			o.Spec.Ports[0].Protocol = corev1.ProtocolUDP
		case *discoveryv1.EndpointSlice:
			o.Ports[0].Protocol = new(corev1.ProtocolUDP)
		}
	}
	return objects
}

// whoAnswersUDP is whoAnswers with a new socket for each question.
func whoAnswersUDP(from *lab.Namespace, address string) string {
	seen := map[string]bool{}
	for range 4 {
		seen[whoAnswersOnce(from, address)] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(seen)), " ")
}

// whoAnswersOnce asks again when it hears nothing, as resolvers do: the answer of an
// endpoint that is just leaving may be lost with its flow.
func whoAnswersOnce(from *lab.Namespace, address string) string {
	const pause = 100 * time.Millisecond
	client, err := from.Dial("udp", address, patience)
	if err != nil {
		return err.Error()
	}
	defer client.Close()
	answer, err := askBy(client, "", pause)
	for started := time.Now(); errors.Is(err, os.ErrDeadlineExceeded) && time.Since(started) < patience; {
		answer, err = askBy(client, "", pause)
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return noAnswer
	case err != nil:
		return err.Error()
	}
	return strings.TrimSpace(answer)
}

func TestTrafficPoliciesDecideWhichEndpointsUDPClientsGet(t *testing.T) {
	t.Parallel()
	c := newTwoUDPNodes(t)
	cases := []policyCase{
		{inCluster, exCluster, "both", bothPods, bothPods, bothPods},
		{inCluster, exLocal, "both", bothPods, bothPods, localPod},
		{inLocal, exCluster, "both", localPod, bothPods, bothPods},
		{inLocal, exLocal, "remote", noAnswer, remotePod, noAnswer},
		{inLocal, exLocal, "none", noAnswer, noAnswer, noAnswer},
	}
	for i, p := range cases {
		c.apply(fmt.Sprint("policy-", i), overUDP(slices.Concat(p.objects(i+1, byIPv4), p.objects(i+1, byIPv6)))...)
	}
	c.start("--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48")
	for i, p := range cases {
		for _, a := range []addressing{byIPv4, byIPv6} {
			c.wantPolicyBy(whoAnswersUDP, p, a.ways(i+1))
		}
	}
}

// udpFlowTo opens a client that is led to the pod named.
func udpFlowTo(t *testing.T, from *lab.Namespace, address, pod string) net.Conn {
	t.Helper()
	for range 10 { // clients come to the pods in turn
		client := udpClient(t, from, address)
		answer, err := askBy(client, "1", patience)
		check(t, err)
		if answer == pod+" 1" {
			return client
		}
	}
	t.Fatalf("%s leads nobody to %s", address, pod)
	return nil
}

// A policy is for new clients: it cuts no flow.
func TestUDPClientKeepsItsPodWhenAPolicyChanges(t *testing.T) {
	t.Parallel()
	c := newTwoUDPNodes(t)
	p := policyCase{internal: inCluster, external: exCluster, endpoints: "both"}
	publish := func() { c.apply("policy", overUDP(p.objects(1, byIPv4))...) }
	publish()
	c.start("--cluster-cidr", "10.244.0.0/16")
	ways := byIPv4.ways(1)
	clients := []net.Conn{udpFlowTo(t, c.client(), ways["clusterIP"], remotePod), udpFlowTo(t, c.Outside, ways["nodePort"], remotePod)}
	p.internal, p.external = inLocal, exLocal
	publish()
	for _, way := range []string{"clusterIP", "nodePort"} {
		within(t, time.Second, func() error {
			if who := whoAnswersUDP(c.Outside, ways[way]); who != localPod {
				return fmt.Errorf("by the %s new clients are answered by %s, want %s", way, who, localPod)
			}
			return nil
		})
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for _, client := range clients {
			if who, err := askBy(client, "2", patience); who != remotePod+" 2" {
				t.Fatalf("at %v a client there was before is answered by %q (%v), want %s", client.RemoteAddr(), who, err, remotePod)
			}
		}
	}
}

func TestUDPClientKeepsAPodThatTerminatesAndServes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveUDPAll("pod-a", "pod-b")
	c.publishUDP(podA, podB)
	c.start()
	clients := []net.Conn{udpFlowTo(t, c.client(), udpAddress, "pod-a"), udpFlowTo(t, c.Outside, "172.20.1.2:30053", "pod-a")}
	conditions := func(serving bool) func(*discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: &serving, Terminating: new(true)}
		}
	}
	c.apply("slice", newUDPSlice("dns", []string{podA, podB}, conditions(true)))
	within(t, time.Second, func() error {
		if who := whoAnswersUDP(c.client(), udpAddress); who != "pod-b" {
			return fmt.Errorf("new clients are answered by %s, want pod-b", who)
		}
		return nil
	})
	for _, client := range clients {
		for range 10 {
			if who, err := askBy(client, "2", patience); who != "pod-a 2" {
				t.Errorf("a client there was before is answered by %q (%v), want pod-a", who, err)
			}
		}
	}
	c.apply("slice", newUDPSlice("dns", []string{podA, podB}, conditions(false)))
	for _, client := range clients {
		within(t, time.Second, func() error { return answeredOn(client, "pod-b") })
	}
}

func TestSourceRangesGuardTheLoadBalancerAddressesOverUDP(t *testing.T) {
	t.Parallel()
	c := newTwoUDPNodes(t)
	objects := overUDP(policyCase{internal: inCluster, external: exCluster, endpoints: "local"}.objects(1, byIPv4))
	edit := func(ranges ...string) {
		admitting(ranges...)(objects[0].(*corev1.Service))
		c.apply("policy", objects...)
	}
	edit("10.244.1.0/24")
	p := c.start()
	ways := byIPv4.ways(1)
	for _, way := range []string{"clusterIP", "externalIP", "nodePort"} { // not guarded
		if who := whoAnswersOnce(c.Outside, ways[way]); who != localPod {
			t.Errorf("by the %s answered by %s, want %s", way, who, localPod)
		}
	}
	if who := whoAnswersOnce(c.client(), ways["load balancer"]); who != localPod {
		t.Errorf("a client in the ranges is answered by %s", who)
	}
	stranger := udpClient(t, c.Outside, ways["load balancer"])
	if answer, err := askBy(stranger, "?", 500*time.Millisecond); err == nil || errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a client outside of the ranges hears %q (%v), want silence", answer, err)
	}
	r := p.records(1)[0]
	if r.Close != "denied" || r.Original != ways["load balancer"] || !strings.HasPrefix(r.Client, lab.OutsideIP) || r.Backend != "" {
		t.Errorf("logged %+v, want the client that was denied", r)
	}
	edit("10.244.1.0/24", "172.20.9.0/24")
	within(t, time.Second, func() error { return answeredOn(stranger, localPod) })
}

func TestAffinityHoldsForUDPClients(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveUDPAll("pod-a", "pod-b")
	pods := newUDPSlice("dns", []string{podA, podB})
	c.apply("dns", newService("dns", "10.96.0.53", udp, nodePort(30053)), pods)
	c.start()
	if who := whoAnswersUDP(c.client(), udpAddress); who != "pod-a pod-b" {
		t.Errorf("without affinity answered by %s, want both in turn", who)
	}
	c.apply("dns", newService("dns", "10.96.0.53", udp, nodePort(30053), sticky(2)), pods)
	within(t, time.Second, func() error {
		if who := whoAnswersUDP(c.client(), udpAddress); strings.Contains(who, " ") {
			return fmt.Errorf("with affinity answered by %s", who)
		}
		return nil
	})
	pinned := whoAnswersUDP(c.client(), udpAddress)
	if who := whoAnswersUDP(c.client(), "172.20.1.2:30053"); who != pinned {
		t.Errorf("by another address answered by %s, want %s", who, pinned)
	}
	time.Sleep(2050 * time.Millisecond)
	if who := whoAnswersUDP(c.client(), udpAddress); who != other(pinned) {
		t.Errorf("after the timeout answered by %s, want %s", who, other(pinned))
	}
	c.apply("dns", newService("dns", "10.96.0.53", udp, nodePort(30053), sticky(100)), newUDPSlice("dns", []string{c.Pod(pinned).Addr4.String()}))
	within(t, time.Second, func() error {
		if who := whoAnswersUDP(c.client(), udpAddress); who != pinned {
			return fmt.Errorf("answered by %s, want %s, which is left", who, pinned)
		}
		return nil
	})
}
