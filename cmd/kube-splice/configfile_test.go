package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const configHeader = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// writeConfig writes a configuration file of these lines.
func writeConfig(t testing.TB, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.conf")
	check(t, os.WriteFile(path, []byte(configHeader+strings.Join(lines, "\n")+"\n"), 0o600))
	return path
}

// configz returns what /configz shows on the node, as JSON objects by field.
func configz(c *cluster) map[string]any {
	c.t.Helper()
	_, body, err := get(c.Node, "http://127.0.0.1:10249/configz")
	check(c.t, err)
	var page map[string]map[string]any
	check(c.t, json.Unmarshal([]byte(body), &page))
	return page["kubeproxy.config.k8s.io"]
}

// wantFields demands values of /configz, as they are in Go's fmt.
func wantFields(c *cluster, want map[string]string) {
	c.t.Helper()
	shown := configz(c)
	for path, value := range want {
		var at any = shown
		for part := range strings.SplitSeq(path, ".") {
			section, _ := at.(map[string]any)
			at = section[part]
		}
		if got := fmt.Sprint(at); got != value {
			c.t.Errorf("/configz: %s is %s, want %s", path, got, value)
		}
	}
}

func TestCommandLineOfKubeadmRunsAsItIs(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	p := c.start("--config=../../config/testdata/kubeadm.yaml", "--hostname-override=Node")
	wantAnswer(t, c.client(), webAddress, "pod-a")
	for text, n := range map[string]int{
		"level=WARN": 0, "without a meaning": 0, "nf_conntrack": 0, "oom_score_adj": 0, "node=node": 1,
		`every proxy mode runs as userspace" asked="kube-proxy's default" runs=userspace`: 1,
	} {
		if err := wantSaid(p, text, n); err != nil {
			t.Error(err)
		}
	}
	wantPage(t, c.Outside, "http://172.20.1.2:10256/healthz", 200, "")
	wantFields(c, map[string]string{
		"kind": "KubeProxyConfiguration", "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "hostnameOverride": "node", "clusterCIDR": "10.244.0.0/16",
		"clientConnection.kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf", "iptables.syncPeriod": "30s", "iptables.minSyncPeriod": "100ms",
		"conntrack.maxPerCore": "32768", "healthzBindAddress": "0.0.0.0:10256",
	})
}

func TestConfigurationFileIsInForceAndReplacesFlags(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b", "pod-c")
	c.publish(podA, podB, podC)
	file := writeConfig(t, "mode: nftables", "ipvs: {scheduler: sh, strictARP: true}", "portRange: 42000-42009", "nodePortAddresses: [primary]",
		"healthzBindAddress: 0.0.0.0:10300", "enableProfiling: true", "featureGates: {SomeGate: true}", "udpIdleTimeout: 250ms", "mode: ipvs",
		"logging: {verbosity: 4, format: json}", "hostnameOverride: other")
	p := c.prepare("", "--config", file, "--healthz-bind-address", "0.0.0.0:10400", "--proxy-port-range=42005", "--ipvs-scheduler=rr", "--masquerade-all", "--logging-format=text", "--udp-timeout=1s")
	c.run(p)
	p.waitReady()
	if got := behavior(c, p); got != onOnePod {
		t.Errorf("ipvs.scheduler sh spreads connections %s", got)
	}
	for _, text := range []string{
		`level=WARN msg="fields of the configuration that are unknown or there twice"`, `udpIdleTimeout`, `\"mode\" already set`,
		`flags="--healthz-bind-address --ipvs-scheduler --masquerade-all"`,
		`level=INFO msg="settings without a meaning here are accepted" settings="featureGates.SomeGate ipvs.strictARP"`,
		"asked=ipvs runs=userspace", "node=node",
	} {
		if err := wantSaid(p, text, 1); err != nil {
			t.Error(err)
		}
	}
	if !strings.Contains(p.said.text(), "level=DEBUG") {
		t.Error("logging.verbosity 4 says nothing for debugging")
	}
	wantPage(t, c.Outside, "http://172.20.1.2:10300/livez", 200, "")
	wantPage(t, c.Node, "http://127.0.0.1:10249/debug/pprof/", 200, "")
	wantFields(c, map[string]string{"portRange": "42005", "hostnameOverride": "node", "logging.format": "text", "mode": "ipvs"})
	if !strings.Contains(strings.Join(c.ourRules(), "\n"), "--to-ports 42005") {
		t.Errorf("--proxy-port-range is ours, but not in force: %v", c.ourRules())
	}
}

func TestListenerPortsAreThoseOfTheFile(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	p := c.start("--config", writeConfig(t, "portRange: 42000-42000", "ipvs: {scheduler: lblc}", "nodePortAddresses: [all]", "logging: {verbosity: 4}"), "-v=0", "--balancer=random")
	if rules := strings.Join(c.ourRules(), "\n"); !strings.Contains(rules, "--to-ports 42000") {
		t.Errorf("portRange is not in force: %s", rules)
	}
	if err := wantSaid(p, "ipvs.scheduler=lblc", 1); err != nil {
		t.Error(err)
	}
	if err := wantSaid(p, "level=DEBUG", 0); err != nil {
		t.Errorf("-v is not stronger than the file: %v", err)
	}
}

func TestBadConfigurationFilesAreRefusedInOneLine(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for lines, says := range map[string]string{
		"mode: kernelspace":                    "mode kernelspace userspace",
		"mode: [":                              "line",
		"portRange: 5-3":                       "portRange 5-3 FIRST-LAST",
		"nodePortAddresses: [172.20.1.2]":      "nodePortAddresses 172.20.1.2/32",
		"bindAddress: 127.0.0.1":               "bindAddress 127.0.0.1 loopback",
		"oomScoreAdj: 2000\nclusterCIDR: here": "oomScoreAdj 2000 clusterCIDR here",
		"kind: Pod\nmode: ''":                  "KubeProxyConfiguration",
	} {
		file := writeConfig(t, lines)
		if strings.HasPrefix(lines, "kind") {
			check(t, os.WriteFile(file, []byte("apiVersion: v1\n"+lines+"\n"), 0o600))
		}
		for _, args := range [][]string{{"--manifests", c.manifests}, {"--write-config-to", filepath.Join(t.TempDir(), "out")}, {"--init-only"}} {
			args = append(args, "--config", file)
			said, status := c.runToEnd("", args...)
			refusal{status: exitError, words: append(words(says), file)}.check(t, lines, said, status)
		}
	}
	said, status := c.runToEnd("", "--manifests", c.manifests, "--config", "/no/such/file")
	refusal{status: exitError, words: words("configuration /no/such/file")}.check(t, "no file", said, status)
}

func TestChangeOfTheConfigurationFileEndsTheProgramOnceConnectionsAreDone(t *testing.T) {
	t.Parallel()
	file := writeConfig(t, "mode: ''")
	c, p, conn, backend := heldConnection(t, "--config", file)
	check(t, os.WriteFile(file, []byte(configHeader+"mode: ipvs\n"), 0o600))
	eventually(t, func() error { return wantSaid(p, "the configuration file has changed", 1) })
	eventually(t, func() error { return wantSaid(p, "no new connections", 1) })
	wantRefused(t, c.client(), webAddress)
	p.running()
	_, err := backend.Write([]byte("after"))
	check(t, err)
	receive(t, conn, len("after"))
	check(t, conn.Close())
	check(t, backend.Close())
	if status := p.waitExit(); status != exitOK {
		t.Errorf("status %d, want %d, which lets a supervisor start it again", status, exitOK)
	}
	if len(c.ourRules()) == 0 {
		t.Error("the rules are gone, which the next start wants to take up")
	}
}

func TestWrittenConfigurationIsTheEffectiveOneAndReadsBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	folder := t.TempDir()
	first, second := filepath.Join(folder, "first"), filepath.Join(folder, "second")
	said, status := c.runToEnd("", "--write-config-to", first, "--proxy-mode", "ipvs", "--ipvs-scheduler=lc", "--cluster-cidr=10.1.0.0/16,fd00::/48", "--proxy-port-range=42000-42010",
		"--conntrack-min=7", "--hostname-override", " NODE-7 ", "--feature-gates", "A=true,B=false", "--healthz-port=0", "--metrics-bind-address=::1", "-v=4", "--vmodule=a=3",
		"--kubeconfig=/etc/kubeconfig", "--kube-api-qps=7.5", "--iptables-masquerade-bit=3")
	if status != exitOK || strings.Count(said, "\n") != 1 {
		t.Fatalf("status %d, said %q", status, said)
	}
	text, err := os.ReadFile(first)
	check(t, err)
	for _, line := range []string{
		"kind: KubeProxyConfiguration", "apiVersion: kubeproxy.config.k8s.io/v1alpha1", "mode: ipvs", "  scheduler: lc", "clusterCIDR: 10.1.0.0/16,fd00::/48",
		"portRange: 42000-42010", "  min: 7", "hostnameOverride: node-7", "  A: true", "  B: false", `metricsBindAddress: '[::1]:10249'`, "  verbosity: 4",
		"  - filePattern: a", "  kubeconfig: /etc/kubeconfig", "  qps: 7.5", "  masqueradeBit: 3",
	} {
		if !strings.Contains(string(text), "\n"+line+"\n") && !strings.HasPrefix(string(text), line+"\n") {
			t.Errorf("%q is not in\n%s", line, text)
		}
	}
	if !strings.Contains(string(text), `healthzBindAddress: ""`) {
		t.Errorf("--healthz-port=0 leaves an address:\n%s", text)
	}
	// An empty address of a server stands for its default in a file, as in kube-proxy.
	text = []byte(strings.Replace(string(text), `healthzBindAddress: ""`, "healthzBindAddress: 0.0.0.0:10256", 1))
	if said, status = c.runToEnd("", "--config", first, "--write-config-to", second); status != exitOK {
		t.Fatalf("status %d, said %q", status, said)
	}
	if again, err := os.ReadFile(second); err != nil || string(again) != string(text) {
		t.Errorf("%v: written from what was written:\n%s\nwant\n%s", err, again, text)
	}
}
