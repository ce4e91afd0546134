package main

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-splice/kube-splice/lab"
)

func TestBindAddressIsWhereListenersAreAndRulesLead(t *testing.T) {
	forEachBackend(t, func(c *cluster, p *programs) {
		c.serveAll("pod-a")
		c.apply("web", newService("web", "10.96.0.10", nodePort(30080), externalIPs("172.20.1.2")), newSlice("web", []string{podA}))
		c.launch(p.setup(), "--bind-address", lab.NodeSecondIP).waitReady()

		listening := c.listening()
		if len(listening) != 1 || !strings.HasPrefix(listening[0], lab.NodeSecondIP+":") {
			c.t.Fatalf("listening on %v, want %s only", listening, lab.NodeSecondIP)
		}
		for _, rule := range p.ours() {
			leads := strings.Contains(rule, "REDIRECT") || strings.Contains(rule, "DNAT")
			if leads && !strings.HasSuffix(rule, "-j DNAT --to-destination "+listening[0]) {
				c.t.Errorf("does not lead to the listener at %s: %s", listening[0], rule)
			}
		}
		for _, from := range []*lab.Namespace{c.Outside, c.client(), c.Node} {
			for _, address := range []string{"10.96.0.10:80", "172.20.1.2:30080", "172.20.1.5:30080", "172.20.1.2:80"} {
				wantAnswer(c.t, from, address, "pod-a")
			}
		}
	})
}

func TestIPv6ListenersAreEverywhereWhenTheBindAddressIsOfIPv4(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.apply("web", newService("web", "10.96.0.10", withIPv6("fd00:10:96::10")),
		newSlice("web", []string{podA}), newSlice("web", []string{podA6}, ipv6))
	c.start("--bind-address", lab.NodeSecondIP)
	for _, address := range []string{"10.96.0.10:80", "[fd00:10:96::10]:80"} {
		wantAnswer(t, c.Outside, address, "pod-a")
		wantAnswer(t, c.Node, address, "pod-a")
	}
}

func TestNodePortsAnswerOnlyOnThePrimaryAddress(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	// The Node object says which address is the primary one.
	c.apply("node", &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: "node"},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: lab.NodeSecondIP}}},
	})
	c.apply("web", newService("web", "10.96.0.10", nodePort(30080)), newSlice("web", []string{podA}))
	c.start("--nodeport-addresses", "primary")
	for _, from := range []*lab.Namespace{c.Outside, c.client(), c.Node} {
		wantAnswer(t, from, lab.NodeSecondIP+":30080", "pod-a")
		wantRefused(t, from, lab.NodeIP+":30080")
	}
	wantAnswer(t, c.Outside, "10.96.0.10:80", "pod-a")

	// Nor does the former one when it changes.
	c.remove("node")
	within(t, 2*time.Second, func() error { return answeredBy(c, lab.NodeIP+":30080", "pod-a") })
	within(t, 2*time.Second, func() error { return refused(c.Outside, lab.NodeSecondIP+":30080") })
}

func TestBindAddressThatTheNodeGetsLaterIsWaitedFor(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.apply("web", newService("web", "10.96.0.10"), newSlice("web", []string{podA}))
	p := c.programs("nft")
	program := c.launch(p.setup(), "--bind-address", "172.20.1.9")
	program.waitReady()
	time.Sleep(3500 * time.Millisecond) // it is tried again meanwhile
	check(t, wantSaid(program, "level=ERROR", 1))
	check(t, wantSaid(program, "--bind-address", 1))
	check(t, p.wantPortals())

	c.onNode("ip", "address", "add", "172.20.1.9/24", "dev", "eth0")
	eventually(t, func() error { return answeredBy(c, "10.96.0.10:80", "pod-a") })
	check(t, wantSaid(program, "solved", 1))
}
