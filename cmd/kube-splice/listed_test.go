package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// listed returns what "kubectl get services,endpointslices -A -o yaml" printed in a
// cluster, with the pods of the lab in the place of that cluster's.
func listed(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../source/testdata/kubectl-get.yaml")
	check(t, err)
	return strings.NewReplacer(
		"10.244.0.3", podB, // a DNS server
		"10.244.0.21", podA, "10.244.1.9", podC, "fd00:10:244::15", podB6, // of shop/shop
		"192.0.2.80", "10.96.0.80",
	).Replace(string(text))
}

func wantListedServices(c *cluster) {
	c.t.Helper()
	for address, pod := range map[string]string{
		"10.96.0.1:443":            "api-server",
		"10.96.0.53:53":            "dns",
		"10.96.14.7:80":            "pod-a",
		"10.96.0.80:80":            "pod-a",
		"172.20.1.2:31380":         "pod-a",
		"[fd00:10:96::e07]:80":     "pod-b",
		"[fd00:172:20:1::2]:31380": "pod-b",
	} {
		wantAnswer(c.t, c.client(), address, pod)
	}
}

func (c *cluster) serveListed() {
	c.t.Helper()
	c.serveAll("pod-a", "pod-b", "pod-c")
	c.serveAs(c.Pod("pod-b").Namespace, 53, named("dns"))
	c.serveAs(c.Node, 6443, named("api-server"))
}

func TestListAsKubectlPrintsItIsServed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveListed()
	path := filepath.Join(t.TempDir(), "services.yaml")
	check(t, os.WriteFile(path, []byte(listed(t)), 0o600))
	p := c.start("--manifests", path)
	wantListedServices(c)

	// Printed again over the same file, as a cron job might.
	check(t, os.WriteFile(path, []byte(strings.ReplaceAll(listed(t), "- "+podA, "- "+podC)), 0o600))
	soon(t, c.client(), "10.96.14.7:80", "pod-c")
	wantNotices(t, p, "level=ERROR", 0)
}

func TestListOnStandardInputIsServed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveListed()
	path := filepath.Join(t.TempDir(), "services")
	check(t, os.WriteFile(path, []byte(listed(t)), 0o600))
	c.launch("exec <"+path, "--manifests", "-").waitReady()
	wantListedServices(c)
}

// newEndpoints returns the Endpoints object of a Service, as short as one may be
// written by hand.
func newEndpoints(service string, ready, notReady []string) any {
	type object map[string]any
	addresses := func(ips []string) (all []object) {
		for _, ip := range ips {
			all = append(all, object{"ip": ip})
		}
		return all
	}
	return object{
		"apiVersion": "v1", "kind": "Endpoints", "metadata": object{"name": service},
		"subsets": []object{{
			"addresses": addresses(ready), "notReadyAddresses": addresses(notReady),
			"ports": []object{{"name": "http", "port": 8080}},
		}},
	}
}

func TestEndpointsStandInForServiceWithoutSlices(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b", "pod-c")
	c.apply("web", newService("web", "10.96.0.10", withIPv6("fd00:10:96::10")))
	c.apply("endpoints", newEndpoints("web", []string{podA, podB, podB6}, []string{podC, podC6}))
	c.start()
	wantShares(t, c, webAddress, 4, "pod-a", "pod-b")
	wantAnswer(t, c.Outside, "[fd00:10:96::10]:80", "pod-b")

	c.apply("endpoints", newEndpoints("web", []string{podC}, []string{podA, podB}))
	soon(t, c.Outside, webAddress, "pod-c")
	within(t, time.Second, func() error { return refused(c.Outside, "[fd00:10:96::10]:80") })

	c.apply("slice", newSlice("web", []string{podA}))
	soon(t, c.Outside, webAddress, "pod-a")
	wantShares(t, c, webAddress, 5, "pod-a")
	c.remove("slice")
	soon(t, c.Outside, webAddress, "pod-c")
	c.remove("endpoints")
	within(t, time.Second, func() error { return refused(c.Outside, webAddress) })
}
