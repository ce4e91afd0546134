package source_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

var label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// fuzzSeed touches every field that Build reads, briefly: the fuzzer minimizes
// what it finds interesting, which takes for ever with a long seed.
const fuzzSeed = `apiVersion: v1
kind: Service
metadata: {name: w, annotations: {kube-splice.io/idle-timeout: 1s}}
spec:
  type: LoadBalancer
  clusterIPs: [10.0.0.1, "fd00::1"]
  externalIPs: [192.0.2.1]
  ports: [{name: a, port: 80, nodePort: 30080}, {name: b, port: 53, protocol: UDP}]
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 5}}
status: {loadBalancer: {ingress: [{ip: 192.0.2.2, ipMode: VIP}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: w, labels: {kubernetes.io/service-name: w}}
addressType: IPv4
endpoints: [{addresses: [10.1.0.1], conditions: {ready: false, terminating: true}}, {addresses: [10.1.0.2], zone: z}]
ports: [{name: a, port: 8080}, {name: b, port: 5353, protocol: UDP}]
`

// fuzzSeedOfPlaces has the fields that say who is where and who gets what.
const fuzzSeedOfPlaces = `apiVersion: v1
kind: Service
metadata: {name: w}
spec:
  type: LoadBalancer
  clusterIP: 10.0.0.1
  ports: [{port: 80, nodePort: 30080}]
  internalTrafficPolicy: Local
  externalTrafficPolicy: Local
  loadBalancerSourceRanges: [192.0.2.0/24]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: w, labels: {kubernetes.io/service-name: w}}
addressType: IPv4
endpoints: [{addresses: [10.1.0.2], nodeName: node, hints: {forZones: [{name: z}], forNodes: [{name: n}]}}]
ports: [{port: 8080}]
---
apiVersion: v1
kind: Node
metadata: {name: node, labels: {topology.kubernetes.io/zone: z}}
spec: {podCIDRs: [10.1.0.0/24]}
`

// FuzzManifests feeds any text through the reader of documents and Build: an
// error, or a Snapshot that the rest of the program can rely on.
func FuzzManifests(f *testing.F) {
	f.Add([]byte(endpointsManifest))
	f.Add([]byte(broken))
	f.Add([]byte(fuzzSeed))
	f.Add([]byte(fuzzSeedOfPlaces))
	f.Add([]byte(`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"node"},"status":{"addresses":[{"type":"InternalIP","address":"172.20.1.2"}]}}]}{"apiVersion":"v1","kind":"Pod"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		m := source.Manifests{Path: "-", Stdin: bytes.NewReader(text), NodeName: "node", Log: slog.New(slog.DiscardHandler)}
		// A broken text is an error of Run, and that is fine.
		err := m.Run(ctx, func(s *service.Snapshot) {
			checkSnapshot(t, s)
			cancel()
		})
		if err != nil && strings.ContainsFunc(err.Error(), unicode.IsControl) {
			t.Fatalf("not one clean line: %q", err)
		}
	})
}

// checkSnapshot checks all that package service promises of a Snapshot.
func checkSnapshot(t *testing.T, s *service.Snapshot) {
	t.Helper()
	type claim struct {
		portal   service.Portal
		protocol service.Protocol
		family   service.Family
	}
	owners := map[claim]service.Name{}
	for _, prefix := range s.PodCIDRs {
		checkPrefix(t, prefix)
	}
	for i, p := range s.Ports {
		if i > 0 && s.Ports[i-1].Name.Compare(p.Name) >= 0 {
			t.Fatalf("%v is not after %v", p.Name, s.Ports[i-1].Name)
		}
		checkPort(t, p)
		for _, portal := range p.Portals() {
			portal.Kind, portal.Clients, portal.Scope = 0, 0, 0
			c := claim{portal, p.Name.Protocol, p.Name.Family}
			if owner, has := owners[c]; has && owner != p.Name {
				t.Fatalf("%v of %v is also of %v", portal, p.Name, owner)
			}
			owners[c] = p.Name
		}
	}
}

func checkPort(t *testing.T, p *service.Port) {
	t.Helper()
	n := p.Name
	if !label.MatchString(n.Namespace) || !label.MatchString(n.Service) || n.Port != "" && !label.MatchString(n.Port) ||
		n.Protocol != service.TCP && n.Protocol != service.UDP || p.Number == 0 {
		t.Fatalf("bad port %+v", *p)
	}
	for _, ip := range slices.Concat([]netip.Addr{p.ClusterIP}, p.ExternalIPs, p.LoadBalancerIPs) {
		if service.CheckEndpoint(ip) != nil || service.FamilyOf(ip) != n.Family || ip.Is4In6() {
			t.Fatalf("bad address %v of %v", ip, n)
		}
	}
	if p.Policy.Affinity < 0 || p.Policy.IdleTimeout < 0 || p.Internal >= service.Scopes || p.External >= service.Scopes {
		t.Fatalf("bad policies of %+v", *p)
	}
	for _, r := range p.SourceRanges {
		checkPrefix(t, r)
		if service.FamilyOf(r.Addr()) != n.Family || r.Bits() == 0 {
			t.Fatalf("bad source range %v of %v", r, n)
		}
	}
	checkEndpoints(t, p)
}

func checkPrefix(t *testing.T, p netip.Prefix) {
	t.Helper()
	if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
		t.Fatalf("bad prefix %v", p)
	}
}

func checkEndpoints(t *testing.T, p *service.Port) {
	t.Helper()
	free, ready := 0, 0
	for i, e := range p.Endpoints {
		if service.CheckEndpoint(e.Addr.Addr()) != nil || e.Addr.Port() == 0 || service.FamilyOf(e.Addr.Addr()) != p.Name.Family {
			t.Fatalf("bad endpoint %v of %v", e, p.Name)
		}
		if i > 0 && p.Endpoints[i-1].Addr.Compare(e.Addr) >= 0 {
			t.Fatalf("%v is not after %v", e.Addr, p.Endpoints[i-1].Addr)
		}
		if e.Reserved && !e.Ready || e.Local && e.Node != "node" {
			t.Fatalf("bad place of %+v", e)
		}
		if e.Ready {
			ready++
		}
		if e.Ready && !e.Reserved {
			free++
		}
	}
	if ready > 0 && free == 0 {
		t.Fatalf("hints reserve every endpoint of %v", p.Name)
	}
}
