package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func headless(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }

func externalName(s *corev1.Service) {
	s.Spec.Type = corev1.ServiceTypeExternalName
	s.Spec.ExternalName = "web.example.org"
}

// cleared takes away from a Service of type ExternalName what the API server does.
// One who edits manifests may have left it over.
func cleared(s *corev1.Service) {
	s.Spec.ClusterIP, s.Spec.Ports[0].NodePort = "", 0
}

func clusterIPOnly(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }

func leftOver(*corev1.Service) {}

func sctp(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolSCTP }

func TestServicesThatAreNotForAProxyAreSkippedQuietly(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.apply("web", newService("web", "10.96.0.10"), newSlice("web", []string{podA}))
	c.apply("headless", newService("headless", "", headless), newSlice("headless", []string{podA}))
	c.apply("external", newService("external", "", externalName))
	c.apply("sctp", newService("sctp", "10.96.0.13", sctp), newSlice("sctp", []string{podA}))
	c.apply("another-proxy", newService("another-proxy", "10.96.0.14", func(s *corev1.Service) {
		s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	}), newSlice("another-proxy", []string{podA}))
	c.apply("no-address", newService("no-address", ""))
	p := c.start("--iptables-sync-period", "1s")
	wantAnswer(t, c.Outside, webAddress, "pod-a")
	check(t, wantListeners(c, 1))

	// Several rounds of rule syncs, and of Snapshots that carry these Services along.
	for i := range 4 {
		c.apply("more", newService("more", fmt.Sprintf("10.96.0.2%d", i)), newSlice("more", []string{podA}))
		soon(t, c.Outside, fmt.Sprintf("10.96.0.2%d:80", i), "pod-a")
		time.Sleep(500 * time.Millisecond)
	}
	for _, name := range []string{"headless", "external", "sctp", "another-proxy", "no-address"} {
		check(t, noRuleOf(c, "default/"+name))
	}
	check(t, wantListeners(c, 2))
	wantNotices(t, p, "SCTP", 1)
	wantNotices(t, p, "no spec.clusterIP", 1)
	wantNotices(t, p, "level=WARN", 2) // these
	wantNotices(t, p, "level=ERROR", 0)
}

func TestTypeOfLiveServiceChanges(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	const byNode = "172.20.1.2:30080"
	c.apply("slice", newSlice("web", []string{podA}))
	c.apply("web", newService("web", "10.96.0.10"))
	p := c.start()
	wantAnswer(t, c.Outside, webAddress, "pod-a")
	wantRefused(t, c.Outside, byNode)
	old := hold(t, c.Outside, webAddress)

	c.apply("web", newService("web", "10.96.0.10", nodePort(30080)))
	soon(t, c.Outside, byNode, "pod-a")
	wantAnswer(t, c.Outside, webAddress, "pod-a")
	oldByNode := hold(t, c.Outside, byNode)
	sockets := 0
	for _, left := range []func(*corev1.Service){cleared, leftOver} {
		c.apply("web", newService("web", "10.96.0.10", nodePort(30080), externalName, left))
		within(t, time.Second, func() error { return noRuleOf(c, "default/web:") })
		check(t, unserved(c.Outside, webAddress))
		wantRefused(t, c.Outside, byNode)
		check(t, wantListeners(c, 0))
		if sockets == 0 {
			sockets = p.sockets()
		}
		within(t, time.Second, func() error {
			if now := p.sockets(); now != sockets {
				return fmt.Errorf("%d sockets, %d the last time", now, sockets)
			}
			return nil
		})

		// The nodePort is left over here, too.
		c.apply("web", newService("web", "10.96.0.10", nodePort(30080), clusterIPOnly))
		soon(t, c.Outside, webAddress, "pod-a")
		wantRefused(t, c.Outside, byNode)
	}
	for name, connection := range map[string]*held{"clusterIP": old, "nodePort": oldByNode} {
		if who, err := connection.ask(); who != "pod-a" {
			t.Errorf("the connection by %s, made before the changes, is answered by %q (%v)", name, who, err)
		}
	}
	wantNotices(t, p, "level=WARN", 0)
	wantNotices(t, p, "level=ERROR", 0)
}

// noRuleOf returns a rule that names a Service as an error.
func noRuleOf(c *cluster, service string) error {
	for _, rule := range c.ourRules() {
		if strings.Contains(rule, service) {
			return fmt.Errorf("there is the rule %s", rule)
		}
	}
	return nil
}

func TestConnectionsLiveOnWhenPortNumberOrClusterIPChanges(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.apply("slice", newSlice("web", []string{podA}))
	addresses := []string{"10.96.0.10:80", "10.96.0.10:81", "10.96.0.11:81", "10.96.0.10:80"}
	services := []*corev1.Service{
		newService("web", "10.96.0.10"), newService("web", "10.96.0.10", port(81)),
		newService("web", "10.96.0.11", port(81)), newService("web", "10.96.0.10"),
	}
	c.apply("web", services[0])
	c.start()
	var connections []*held
	for i, address := range addresses {
		c.apply("web", services[i])
		soon(t, c.Outside, address, "pod-a")
		if i > 0 {
			within(t, time.Second, func() error { return unserved(c.Outside, addresses[i-1]) })
		}
		connections = append(connections, hold(t, c.Outside, address))
	}
	for i, connection := range connections {
		if who, err := connection.ask(); who != "pod-a" {
			t.Errorf("the connection made to %s is answered by %q (%v)", addresses[i], who, err)
		}
	}
}
