package main

import (
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func externalIPs(addresses ...string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.ExternalIPs = addresses }
}

func port(number int32) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports[0].Port = number }
}

func TestDeletedServiceLeavesNoListenerNoRuleAndNoHeldPort(t *testing.T) {
	forEachBackend(t, func(c *cluster, p *programs) {
		c.serveAll("pod-a")
		c.launch(p.setup()).waitReady()
		before := c.listening()

		c.apply("web", newService("web", "10.96.0.10", port(48000), nodePort(30080), externalIPs("172.20.1.5")),
			newSlice("web", []string{podA}))
		addresses := []string{"10.96.0.10:48000", "172.20.1.5:48000", "172.20.1.2:30080"}
		for _, address := range addresses {
			eventually(c.t, func() error { _, err := ask(c.Outside, address); return err })
		}
		if listener, err := c.Node.Listen("tcp", "172.20.1.5:48000"); err == nil {
			_ = listener.Close()
			c.t.Error("another program could take the externalIP's port, where nobody would reach it")
		}

		c.remove("web")
		within(c.t, time.Second, func() error { return p.wantPortals() })
		within(c.t, time.Second, func() error {
			listener, err := c.Node.Listen("tcp", "172.20.1.5:48000")
			if err == nil {
				_ = listener.Close()
			}
			return err
		})
		if now := c.listening(); !slices.Equal(now, before) {
			c.t.Errorf("listening on %v, before the Service was made on %v", now, before)
		}
		if len(p.jumps()) != 10 {
			c.t.Errorf("jumps %v, want the 5 of each family to stay", p.jumps())
		}
	})
}

func TestNodePortsCanBeSwappedInOneBatch(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b")
	services := func(portOfA, portOfB int32) {
		c.apply("both",
			newService("a", "10.96.0.10", nodePort(portOfA)), newSlice("a", []string{podA}),
			newService("b", "10.96.0.11", nodePort(portOfB)), newSlice("b", []string{podB}))
	}
	services(30080, 30081)
	c.start()
	want := map[int]string{30080: "pod-a", 30081: "pod-b"}
	for range 4 {
		for number, pod := range want {
			within(t, time.Second, func() error {
				return answeredBy(c, "172.20.1.2:"+strconv.Itoa(number), pod)
			})
		}
		want[30080], want[30081] = want[30081], want[30080]
		if want[30080] == "pod-b" {
			services(30081, 30080)
		} else {
			services(30080, 30081)
		}
	}
}

func TestEditedServiceAnswersOnlyWhereItNowSays(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.programs("nft")
	c.serveAll("pod-a")
	c.apply("slice", newSlice("web", []string{podA}))
	c.start()
	edits := []struct {
		name    string
		service *corev1.Service
		portals []string
	}{
		{"made", newService("web", "10.96.0.10"), []string{"10.96.0.10:80"}},
		{"another port", newService("web", "10.96.0.10", port(81)), []string{"10.96.0.10:81"}},
		{"another address", newService("web", "10.96.0.12", port(81)), []string{"10.96.0.12:81"}},
		{"a node port", newService("web", "10.96.0.12", nodePort(30080)), []string{"10.96.0.12:80", ":30080"}},
		{"another node port", newService("web", "10.96.0.12", nodePort(30081)), []string{"10.96.0.12:80", ":30081"}},
		{"externalIPs", newService("web", "10.96.0.12", externalIPs("172.20.1.5", "10.96.0.60")),
			[]string{"10.96.0.12:80", "172.20.1.5:80", "10.96.0.60:80"}},
		{"one externalIP less", newService("web", "10.96.0.12", externalIPs("172.20.1.5")),
			[]string{"10.96.0.12:80", "172.20.1.5:80"}},
		{"all ways in", newService("web", "10.96.0.10", everyWayIn),
			[]string{"10.96.0.10:80", "10.96.0.60:80", "10.96.0.50:80", ":30080"}},
		{"clusterIP only", newService("web", "10.96.0.10"), []string{"10.96.0.10:80"}},
	}
	for _, edit := range edits {
		c.apply("web", edit.service)
		within(t, time.Second, func() error { return p.wantPortals(edit.portals...) })
		for _, address := range edit.portals {
			if address[0] == ':' {
				address = "172.20.1.2" + address
			}
			if err := answeredBy(c, address, "pod-a"); err != nil {
				t.Errorf("%s: %v", edit.name, err)
			}
		}
		if edit.portals[len(edit.portals)-1][0] != ':' {
			wantRefused(t, c.Outside, "172.20.1.2:30080")
			wantRefused(t, c.Outside, "172.20.1.2:30081")
		}
		within(t, time.Second, func() error { return wantListeners(c, 1) })
	}
}
