package source_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

func TestKubectlOutputIsReadAsItIs(t *testing.T) {
	for _, name := range []string{"kubectl-get.yaml", "kubectl-get.json"} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", name))
			if err != nil {
				t.Fatal(err)
			}
			snapshot, log := readManifests(t, source.Manifests{}, string(text))
			equal(t, "log", log, nil)
			equal(t, "ports", names(snapshot), []string{
				"default/kubernetes:https tcp IPv4", "kube-system/kube-dns:dns udp IPv4", "kube-system/kube-dns:dns-tcp tcp IPv4",
				"shop/shop tcp IPv4", "shop/shop tcp IPv6",
			})
			want := service.Port{
				Name:            service.Name{Namespace: "shop", Service: "shop", Protocol: service.TCP, Family: service.IPv4},
				Number:          80,
				ClusterIP:       netip.MustParseAddr("10.96.14.7"),
				LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("192.0.2.80")},
				NodePort:        31380,
				Policy:          service.Policy{Balancer: "least-connections", Affinity: 10 * time.Minute},
				Endpoints: []service.Endpoint{
					{Addr: netip.MustParseAddrPort("10.244.0.21:8080"), Ready: true, Serving: true, Node: "node", Zone: "eu-1a"},
					{Addr: netip.MustParseAddrPort("10.244.1.9:8080"), Serving: true, Terminating: true, Node: "node2", Zone: "eu-1b"},
				},
			}
			if shop := snapshot.Port(want.Name); !shop.Equal(&want) {
				t.Errorf("shop:\n got %+v\nwant %+v", *shop, want)
			}
			equal(t, "IPv6", addrs(snapshot.Ports[4]), []string{"[fd00:10:244::15]:8080"})
		})
	}
}

func TestDemoManifestsAreServed(t *testing.T) {
	f := follow(t, source.Manifests{Path: "../testdata/manifests", NodeName: "node"})
	snapshot := f.next(t)
	equal(t, "log", f.log.rest(), nil)
	equal(t, "node", texts(snapshot.NodeIPs), []string{"172.20.1.2", "fd00:172:20:1::2"})
	pods := []string{"10.244.1.11:8080", "10.244.1.12:8080", "10.244.1.13:8080"}
	for name, want := range map[service.Name]struct {
		clusterIP string
		nodePort  uint16
		affinity  time.Duration
		pods      []string
	}{
		tcp("web", "http"):      {"10.96.0.10", 0, 0, pods},
		tcp("sticky", "http"):   {"10.96.0.20", 0, 3 * time.Hour, pods},
		tcp("nodeport", "http"): {"10.96.0.30", 30080, 0, pods},
		tcp("empty", "http"):    {"10.96.0.40", 0, 0, []string{}},
		{Namespace: "default", Service: "dns", Port: "dns", Protocol: service.UDP, Family: service.IPv4}: {
			"10.96.0.53", 0, 0, []string{"10.244.1.11:8080", "10.244.1.12:8080", "10.244.1.13:8080"}},
		{Namespace: "default", Service: "web", Port: "http", Protocol: service.TCP, Family: service.IPv6}: {
			"fd00:10:96::10", 0, 0, []string{"[fd00:10:244:1::11]:8080", "[fd00:10:244:1::12]:8080", "[fd00:10:244:1::13]:8080"}},
	} {
		p := snapshot.Port(name)
		if p == nil {
			t.Errorf("no port %v %v", name, name.Family)
			continue
		}
		if p.ClusterIP.String() != want.clusterIP || p.NodePort != want.nodePort || p.Policy.Affinity != want.affinity || p.Number != 80 && p.Number != 53 {
			t.Errorf("%v: %+v", name, *p)
		}
		equal(t, name.String(), addrs(p), want.pods)
	}
	if len(snapshot.Ports) != 6 {
		t.Errorf("ports: %v", names(snapshot))
	}
}

func TestDocumentsMayComeInManyForms(t *testing.T) {
	jsonOf := func(name, ip string) string {
		return `{"apiVersion":"v1","kind":"Service","metadata":{"name":"` + name + `"},` + "\n\t" + `"spec":{"clusterIP":"10.96.0.` + ip + `","ports":[{"port":80}]}}`
	}
	item := func(name, ip string) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{"clusterIP":"10.96.0.` + ip + `","ports":[{"port":80}]}}`
	}
	buffer := `{"apiVersion":"v1","kind":"ServiceList","items":[` + item("a", "1") + "," + item("b", "2") + "]"
	buffer += strings.Repeat(" ", 4096-len(buffer)-1) + "}"
	for name, text := range map[string]string{
		"a full buffer":    buffer,
		"documents":        manifest("a", "1") + "---\n" + manifest("b", "2"),
		"empty documents":  "# head\n---\n---\n" + manifest("a", "1") + "---   # b\n" + manifest("b", "2") + "---\n# tail\n---\nnull\n",
		"carriage returns": strings.ReplaceAll(manifest("a", "1")+"---\n"+manifest("b", "2"), "\n", "\r\n"),
		"JSON stream":      jsonOf("a", "1") + jsonOf("b", "2") + "\n\n",
		"JSON and YAML":    jsonOf("a", "1") + "\n---\n" + manifest("b", "2"),
		"flow YAML":        "{apiVersion: v1, kind: List, items: [" + jsonOf("a", "1") + ", " + jsonOf("b", "2") + "]}",
		"list":             `{"apiVersion":"v1","kind":"List","items":[` + jsonOf("a", "1") + "," + jsonOf("b", "2") + "]}",
		"typed list":       `{"apiVersion":"v1","kind":"ServiceList","metadata":{"resourceVersion":"7"},"items":[` + item("a", "1") + "," + item("b", "2") + "]}",
	} {
		t.Run(name, func(t *testing.T) {
			snapshot, log := readManifests(t, source.Manifests{}, text)
			equal(t, "log", log, nil)
			equal(t, "clusterIPs", clusterIPsOf(snapshot), []string{"10.96.0.1", "10.96.0.2"})
		})
	}
}

func TestAbsentFieldsMeanWhatTheAPIServerSets(t *testing.T) {
	snapshot, log := readManifests(t, source.Manifests{}, manifest("web", "1")+`  sessionAffinity: ClientIP
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [10.244.1.1]}]
ports: [{port: 8080}]
`)
	equal(t, "log", log, nil)
	p := snapshot.Port(tcp("web", ""))
	equal(t, "endpoints", addrs(p), []string{"10.244.1.1:8080"})
	if p.Policy.Affinity != 3*time.Hour {
		t.Errorf("affinity %v", p.Policy.Affinity)
	}
}

func TestBrokenTextIsRefusedInOneLineThatSaysWhere(t *testing.T) {
	good := manifest("web", "1")
	for name, c := range map[string]struct{ text, says string }{
		"unknown field":    {good + "---\n# note\n---\n" + manifest("api", "2") + "  clusterip: x\n", `document 2: Service api: unknown field "spec.clusterip"`},
		"repeated in YAML": {good + "---\n" + good + "  clusterIP: 10.96.0.2\n", `document 2: Service web: line 16: key "clusterIP" already set`},
		"repeated in JSON": {`{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","name":"api"}}`, `document 1: Service api: duplicate field "metadata.name"`},
		"repeated in list": {`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}},{"apiVersion":"v1","kind":"Service","spec":{"type":"a","type":"b"}}]}`, `document 1: item 2: Service: duplicate field "spec.type"`},
		"no YAML":          {"---\n---\n# note\n---\r\n" + good + "  x: y: z\n", "document 1: line 12: mapping values are not allowed"},
		"half JSON":        {`{"apiVersion":"v1","kind":"Service"` + "\n", "document 1: "},
		"no map":           {"- a\n- b\n", "document 1: is not a Kubernetes object: it has no apiVersion and kind"},
		"not an object":    {good + "---\nmetadata: {name: x}\n", "document 2: is not a Kubernetes object: it has no apiVersion and kind"},
		"none in list":     {"{apiVersion: v1, kind: List, items: [{metadata: {name: x}}]}", "document 1: item 1: is not a Kubernetes object"},
		"null in list":     {"{apiVersion: v1, kind: List, items: [null]}", "document 1: item 1: is not a Kubernetes object"},
		"no kind":          {"apiVersion: v1\nmetadata: {name: x}\n", "document 1: x: it has no kind"},
		"no apiVersion":    {"kind: \"a\\nb\"\nmetadata: {name: x, namespace: shop}\n", `document 1: a�b shop/x: it has no apiVersion`},
		"bad separator":    {good + "--- junk \x1b[2J\n" + good, "document 1: "},
	} {
		t.Run(name, func(t *testing.T) {
			m := source.Manifests{Path: "-", Stdin: strings.NewReader(c.text), Log: newLogbook().logger()}
			err := m.Run(t.Context(), func(*service.Snapshot) { t.Error("published") })
			if err == nil || !strings.Contains(err.Error(), "standard input: "+c.says) {
				t.Fatalf("got error %v, want %q", err, c.says)
			}
			if strings.ContainsAny(err.Error(), "\n\x1b") || len(err.Error()) > 300 {
				t.Errorf("not one short line: %q", err)
			}
		})
	}
}

func TestValueOfTheWrongTypeIsSaidInWords(t *testing.T) {
	const head = "apiVersion: v1\nkind: Service\n"
	for text, says := range map[string]string{
		head + "metadata: {name: web, namespace: shop}\nspec: {ports: [{port: 80}, {port: eighty}]}":      `Service shop/web: spec.ports[1].port: want a number, found "eighty"`,
		head + "metadata: {name: web}\nspec: {ports: [{port: 80.5}]}":                                     `Service web: spec.ports[0].port: want a whole number in its range, found 80.5`,
		head + "metadata: {name: web}\nspec: {ports: {port: 80}}":                                         `Service web: spec.ports: want a list, found a set of fields`,
		head + "metadata: {name: web}\nspec: []":                                                          `Service web: spec: want a set of fields, found a list`,
		head + "metadata: {name: web, annotations: {kube-splice.io/idle-timeout: 10}}":                    `Service web: metadata.annotations["kube-splice.io/idle-timeout"]: want text, found 10: quote it`,
		head + "metadata: {name: web, annotations: {kube-splice.io/connection-log: off}}":                 `Service web: metadata.annotations["kube-splice.io/connection-log"]: want text, found false (off and no mean it, too): quote it`,
		head + "metadata: {name: 10}":                                                                     `Service: metadata.name: want text, found 10: quote it`,
		head + "spec: {publishNotReadyAddresses: \"" + strings.Repeat("y", 500) + "\"}":                   `Service: spec.publishNotReadyAddresses: want true or false, found "` + strings.Repeat("y", 40) + `"`,
		head + "metadata: {name: web}\nspec: {ports: [{targetPort: [1]}]}":                                `Service web: spec.ports.targetPort: want a number, found array`,
		"{apiVersion: v1, kind: [Service], metadata: {name: web}}":                                        `web: kind: want text, found a list`,
		"{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Node, metadata: {name: [a]}}]}":      `item 1: Node: metadata.name: want text, found a list`,
		"{apiVersion: v1, kind: ServiceList, items: [{spec: {ports: []}}, {spec: {ports: [{port: x}]}}]}": `ServiceList: items[1].spec.ports[0].port: want a number, found "x"`,
	} {
		m := source.Manifests{Path: "-", Stdin: strings.NewReader(text), Log: newLogbook().logger()}
		err := m.Run(t.Context(), func(*service.Snapshot) { t.Fatal("published") })
		if err == nil || !strings.HasSuffix(err.Error(), "document 1: "+says) {
			t.Errorf("%.100s:\n got %v\nwant %s", text, err, says)
		}
	}
}

func TestStreamWithoutObjectsIsAnErrorAndAnEmptyListIsNot(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing\n---\n", "null\n"} {
		m := source.Manifests{Path: "-", Stdin: strings.NewReader(text), Log: newLogbook().logger()}
		err := m.Run(t.Context(), func(*service.Snapshot) { t.Fatal("published") })
		if err == nil || err.Error() != "read manifests from standard input: it held no object; did the command before the pipe fail?" {
			t.Errorf("%q: got error %v", text, err)
		}
	}
	snapshot, log := readManifests(t, source.Manifests{}, "apiVersion: v1\nitems: []\nkind: List\nmetadata:\n  resourceVersion: \"\"\n")
	equal(t, "log", log, nil)
	equal(t, "clusterIPs", clusterIPsOf(snapshot), nil)
}

func TestUnusualObjectsAreSaidAndSkipped(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		says []string
	}{
		"kinds not used": {"{apiVersion: v1, kind: Pod}\n---\n{apiVersion: v1, kind: Pod}\n---\n{apiVersion: discovery.k8s.io/v1beta1, kind: EndpointSlice, odd: 1}\n",
			[]string{`msg="objects of this kind are not used and skipped" kind=v1/Pod file=`, `EndpointSlice of discovery.k8s.io/v1 meant?" kind=discovery.k8s.io/v1beta1/EndpointSlice`}},
		"slips": {"{apiVersion: discovery.k8s.io/v1, kind: EndpointSlices}\n---\n{apiVersion: v1, kind: Sevrice}\n---\n{apiVersion: v1, kind: node}\n",
			[]string{"is EndpointSlice of discovery.k8s.io/v1 meant?", "is Service of v1 meant?", "is Node of v1 meant?"}},
		"no slips": {"{apiVersion: serving.knative.dev/v1, kind: Service}\n---\n{apiVersion: v1, kind: ConfigMap}\n---\n{apiVersion: v1, kind: Secret}\n",
			[]string{`skipped" kind=serving.knative.dev/v1/Service`, `skipped" kind=v1/ConfigMap`, `skipped" kind=v1/Secret`}},
		"no name": {"{apiVersion: v1, kind: Service}", []string{"has no metadata.name"}},
		"twice":   {manifest("web", "1"), []string{"more than once"}},
	} {
		t.Run(name, func(t *testing.T) {
			snapshot, log := readManifests(t, source.Manifests{}, manifest("web", "9")+"---\n"+c.text)
			equal(t, "clusterIPs", clusterIPsOf(snapshot), []string{"10.96.0.9"})
			if len(log) != len(c.says) {
				t.Fatalf("log: %q", log)
			}
			for i, says := range c.says {
				if !strings.Contains(log[i], says) || !strings.Contains(log[i], "level=WARN") {
					t.Errorf("log line %q does not warn of %q", log[i], says)
				}
			}
		})
	}
}

func TestFirstFileWinsAnObjectGivenTwice(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "b.yaml"), manifest("web", "2"))
	write(t, filepath.Join(dir, "a.yaml"), manifest("web", "1"))
	f := follow(t, source.Manifests{Path: dir})
	f.expect(t, "10.96.0.1")
	f.log.wait(t, "level=WARN", "Service default/web", "a.yaml", "b.yaml")
	if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	f.expect(t, "10.96.0.2")
	equal(t, "log", f.log.rest(), nil)
}

func TestOnlyTheNodeOfOurNameCounts(t *testing.T) {
	node := func(name, ip string) string {
		return "---\n{apiVersion: v1, kind: Node, metadata: {name: " + name + "}, status: {addresses: [{type: InternalIP, address: " + ip + "}]}}\n"
	}
	text := node("a", "172.20.1.1") + node("b", "172.20.1.2") + node("c", "172.20.1.3")
	snapshot, log := readManifests(t, source.Manifests{NodeName: "b"}, text)
	equal(t, "log", log, nil)
	equal(t, "node IPs", texts(snapshot.NodeIPs), []string{"172.20.1.2"})

	snapshot, log = readManifests(t, source.Manifests{NodeName: "vm"}, text)
	equal(t, "log", log, []string{`level=INFO msg="no Node \"vm\" in the manifests; this node's addresses are taken from its interfaces"`})
	equal(t, "node IPs", texts(snapshot.NodeIPs), []string{})

	_, log = readManifests(t, source.Manifests{NodeName: "vm"}, manifest("web", "1"))
	equal(t, "log without any Node", log, nil)
}

func TestFilesThatAreReadAreNamedAtDebug(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.yaml", ".b.yaml", "c.txt"} {
		write(t, filepath.Join(dir, name), manifest("web", "1"))
	}
	var log strings.Builder
	ctx, cancel := context.WithCancel(t.Context())
	m := source.Manifests{Path: dir, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if err := m.Run(ctx, func(*service.Snapshot) { cancel() }); err != nil {
		t.Error(err)
	}
	if said := log.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "file="+filepath.Join(dir, "a.yaml")) {
		t.Errorf("log: %s", said)
	}
}

func TestUnreadablePathIsAnErrorAtOnce(t *testing.T) {
	m := source.Manifests{Path: filepath.Join(t.TempDir(), "absent")}
	err := m.Run(t.Context(), func(*service.Snapshot) { t.Error("published") })
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), m.Path) {
		t.Errorf("got %v", err)
	}
}

func TestRunEndsWithItsContextWhileStandardInputIsSilent(t *testing.T) {
	reader, writer := io.Pipe()
	defer writer.Close() // ends the goroutine that reads
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := source.Manifests{Path: "-", Stdin: reader, Log: newLogbook().logger()}
	if err := m.Run(ctx, func(*service.Snapshot) { t.Error("published") }); err != nil {
		t.Error(err)
	}
}
