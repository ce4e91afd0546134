package main

import (
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// endpointPort gives the endpoints of a slice another port than 8080.
func endpointPort(number uint16) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) { *s.Ports[0].Port = int32(number) }
}

func TestNodesOwnDaemonsAreNeverDialled(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	_, err := c.Node.Output(exec.Command("ip", "address", "add", "169.254.169.254/32", "dev", "lo"))
	check(t, err)
	serveOn(t, c.Node, ":8080", func(conn *net.TCPConn) {
		t.Errorf("a daemon of the node was connected to at %v", conn.LocalAddr())
		_ = conn.Close()
	})
	c.serveAll("pod-a")
	c.publish("127.0.0.1", "127.1.2.3", "169.254.169.254", "0.0.0.0")
	c.apply("metadata", newService("mixed", "10.96.0.20"), newSlice("mixed", []string{"169.254.169.254", podA}))
	p := c.start()
	wantRefused(t, c.client(), webAddress)
	if got := answers(t, c.client(), "10.96.0.20:80", 10); got["pod-a"] != 10 {
		t.Errorf("answers %v, want all of pod-a", got)
	}
	for _, address := range []string{"127.0.0.1", "127.1.2.3", "169.254.169.254", "0.0.0.0"} {
		if said := p.said.text(); !strings.Contains(said, address) {
			t.Errorf("nothing is said about the endpoint %s: %s", address, said)
		}
	}
}

func TestOurOwnListenersAreNeverDialled(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.publish(podA)
	p := c.start()
	port := c.portOfListener("default/web:http")
	ours := []string{lab.NodeIP, lab.NodeSecondIP, "10.244.1.1"}
	c.apply("loop", newService("loop", "10.96.0.20"), newSlice("loop", ours, endpointPort(port)))
	eventually(t, func() error { _, err := c.findListener("default/loop:http"); return err })

	wantNoAnswer(t, c.client(), "10.96.0.20:80")
	r := p.finish(1)[0]
	if r.Service != "default/loop:http" || r.Close != "dial-failed" || r.Attempts != 0 || !strings.Contains(r.Error, "a listener of this proxy") {
		t.Errorf("logged %+v, want dial-failed of loop because each endpoint is a listener of ours", r)
	}
	if said := p.said.text(); !strings.Contains(said, fmt.Sprintf(`"failed dials"=%d`, len(ours))) {
		t.Errorf("not every endpoint was tried: %s", said)
	}
}

// A dial that the rules of the node's own traffic caught would come back to the
// proxy, and again for as long as there are ports.
func TestEndpointThatIsItsOwnServiceAddressDoesNotLoop(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.publish(podA)
	c.apply("circle",
		newService("circle", "10.96.0.20"), newSlice("circle", []string{"10.96.0.20"}, endpointPort(80)),
		newService("detour", "10.96.0.30"), newSlice("detour", []string{"10.96.0.10"}, endpointPort(80)))
	p := c.start("--dial-timeout", "700ms")
	wantNoAnswer(t, c.client(), "10.96.0.20:80")
	wantNoAnswer(t, c.client(), "10.96.0.30:80")
	records := p.finish(2)
	for i, service := range []string{"default/circle:http", "default/detour:http"} {
		if r := records[i]; r.Service != service || r.Close != "dial-failed" {
			t.Errorf("logged %+v, want dial-failed of %s and nothing else", r, service)
		}
	}
}

func TestEndpointWhoseAddressIsAlsoAServicesIsDialledItself(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	stop := serveOn(t, c.Outside, lab.OutsideIP+":80", echo)
	defer stop()
	c.apply("slice", newSlice("web", []string{podA}))
	c.apply("web", newService("web", "10.96.0.10", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: lab.OutsideIP}}
	}))
	c.apply("external", newService("external", "10.96.0.20"), newSlice("external", []string{lab.OutsideIP}, endpointPort(80)))
	p := c.start()
	if who, err := ask(c.Node, lab.OutsideIP+":80"); who != "pod-a" {
		t.Fatalf("the node's own traffic to the Service address was answered by %q (%v), want pod-a", who, err)
	}
	conn := connect(t, c.client(), "10.96.0.20:80")
	exchange(t, conn, "ping")
	check(t, conn.Close())
	if r := p.finish(2)[1]; r.Backend != lab.OutsideIP+":80" || r.Up != 4 || r.Down != 4 {
		t.Errorf("logged %+v, want 4 bytes each way from %s:80", r, lab.OutsideIP)
	}
}
