package source_test

import (
	"strings"
	"testing"

	"github.com/kube-splice/kube-splice/source"
)

// endpointsManifest is a Service with an Endpoints object of two subsets.
const endpointsManifest = `
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, "fd00::1"], ports: [{port: 5432}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: db}
subsets:
- addresses: [{ip: 192.0.2.2, nodeName: node}, {ip: "2001:db8::2"}]
  notReadyAddresses: [{ip: 192.0.2.1}]
  ports: [{port: 5432}]
- addresses: [{ip: 192.0.2.3}, {ip: 127.0.0.1}]
  ports: [{port: 6432}]
`

func TestEndpointsStandInForMissingSlices(t *testing.T) {
	snapshot, log := readManifests(t, source.Manifests{}, endpointsManifest)
	equal(t, "ports", names(snapshot), []string{"default/db tcp IPv4", "default/db tcp IPv6"})
	equal(t, "IPv4", addrs(snapshot.Ports[0]), []string{"(192.0.2.1:5432)", "192.0.2.2:5432", "192.0.2.3:6432"})
	equal(t, "IPv6", addrs(snapshot.Ports[1]), []string{"[2001:db8::2]:5432"})
	if node := snapshot.Ports[0].Endpoints[1].Node; node != "node" {
		t.Errorf("node of 192.0.2.2 is %q", node)
	}
	if len(log) != 1 || !strings.Contains(log[0], "Endpoints default/db") || !strings.Contains(log[0], "loopback") {
		t.Errorf("log: %q", log)
	}
}

func TestEndpointsDoNotCountBesideASlice(t *testing.T) {
	slice := `
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-1, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
endpoints: [{addresses: [10.244.1.1]}]
ports: [{port: 5432}]
`
	snapshot, log := readManifests(t, source.Manifests{}, endpointsManifest+slice)
	equal(t, "IPv4", addrs(snapshot.Ports[0]), []string{"10.244.1.1:5432"})
	equal(t, "IPv6", addrs(snapshot.Ports[1]), []string{})
	equal(t, "log", log, nil)
}

func TestEndpointsOfNoServiceAreSaid(t *testing.T) {
	_, log := readManifests(t, source.Manifests{}, "{apiVersion: v1, kind: Endpoints, metadata: {name: db}}\n")
	equal(t, "log", log, []string{`level=WARN msg="is ignored: there is no Service of that name here" object="Endpoints default/db" file="standard input"`})
}
