package main

import (
	"strings"
	"testing"
)

// flagsOfKubeProxy are those of kube-proxy 1.37 and of its userspace days, with a
// value that is not the default. Those that end the program, or lead it to an API
// server, are given in tests of their own.
var flagsOfKubeProxy = []string{
	"--proxy-mode=nftables", "--bind-address=::", "--nodeport-addresses=primary,127.0.0.0/8", "--healthz-bind-address=0.0.0.0", "--metrics-bind-address=127.0.0.1:10250",
	"--bind-address-hard-fail", "--profiling", "--iptables-sync-period=20s", "--iptables-min-sync-period=50ms", "--ipvs-sync-period=25s", "--ipvs-min-sync-period=1s",
	"--ipvs-scheduler=lc", "--detect-local-mode=InterfaceNamePrefix", "--cluster-cidr=10.244.0.0/16", "--pod-bridge-interface=cni0", "--pod-interface-name-prefix=veth",
	"--oom-score-adj=500", "--conntrack-max-per-core=1", "--conntrack-min=1", "--conntrack-tcp-timeout-established=2h", "--conntrack-tcp-timeout-close-wait=30m",
	"--conntrack-udp-timeout=20s", "--conntrack-udp-timeout-stream=1m40.5s", "--conntrack-tcp-be-liberal",
	"--kube-api-content-type=application/json", "--kube-api-qps=50", "--kube-api-burst=100",
	"--feature-gates=A=true,B=false", "--show-hidden-metrics-for-version=1.36", "--iptables-masquerade-bit=13", "--masquerade_all", "--iptables-localhost-nodeports=false",
	"--ipvs-exclude-cidrs=10.0.0.0/8", "--ipvs-strict-arp", "--ipvs-tcp-timeout=1s", "--ipvs-tcpfin-timeout=1s", "--ipvs-udp-timeout=1s", "--config-sync-period=1m",
	"--healthz-port=10300", "--metrics-port=10301", "--proxy-port-range=42000-42009", "--udp-timeout=1s",
	"--logging-format=text", "-v=3", "--vmodule=a*=3", "--log-flush-frequency=1s", "--log-text-split-stream", "--log-text-info-buffer-size=1Ki", "--log-json-split-stream", "--log-json-info-buffer-size=1Ki",
}

func TestEveryFlagOfKubeProxyIsAccepted(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	p := c.start(flagsOfKubeProxy...)
	wantAnswer(t, c.client(), webAddress, "pod-a")
	const notice = `settings without a meaning here are accepted" settings="--feature-gates=A --feature-gates=B ` +
		`--show-hidden-metrics-for-version --config-sync-period --iptables-masquerade-bit --iptables-localhost-nodeports ` +
		`--ipvs-sync-period --ipvs-min-sync-period --ipvs-exclude-cidrs --ipvs-strict-arp --ipvs-tcp-timeout --ipvs-tcpfin-timeout --ipvs-udp-timeout --masquerade-all ` +
		`--log-flush-frequency --vmodule --log-text-split-stream --log-text-info-buffer-size --log-json-split-stream --log-json-info-buffer-size"`
	if err := wantSaid(p, notice, 1); err != nil {
		t.Error(err)
	}
	wantPage(t, c.Outside, "http://172.20.1.2:10300/livez", 200, "")
	wantPage(t, c.Node, "http://127.0.0.1:10250/debug/pprof/", 200, "")
	for name, value := range map[string]string{
		"nf_conntrack_tcp_timeout_established": "7200", "nf_conntrack_tcp_timeout_close_wait": "1800", "nf_conntrack_udp_timeout": "20",
		"nf_conntrack_udp_timeout_stream": "101", "nf_conntrack_tcp_be_liberal": "1",
	} {
		wantSysctl(c, name, value)
	}
	if score := p.oomScore(); score != "500" {
		t.Errorf("oom_score_adj is %s", score)
	}
}

func TestHelpExplainsOurFlagsFirstThenThoseOfKubeProxyThenThoseWithoutAMeaning(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	said, status := c.runToEnd("", "--help")
	if status != exitOK {
		t.Errorf("status %d", status)
	}
	at := -1
	for _, text := range []string{"Usage:", "Commands:\n", "\nFlags:\n", "\n      --manifests ", "kube-proxy's flags:\n", "\n      --config ", "Logging:\n", "\n      --logging-format ",
		"says too:\n", "\n      --bind-address ", "without a meaning here", "\n      --masquerade-all"} {
		next := strings.Index(said, text)
		if next <= at {
			t.Errorf("%q is at %d, after %d", text, next, at)
		}
		at = next
	}
	for _, flag := range append([]string{"--config", "--write-config-to", "--init-only", "--cleanup", "--version", "--kubeconfig", "--master", "--hostname-override"}, flagsOfKubeProxy...) {
		name, _, _ := strings.Cut(strings.ReplaceAll(flag, "_", "-"), "=")
		if !strings.Contains(said, name) {
			t.Errorf("%s is not in the help", name)
		}
	}
	if said, _ := c.runToEnd("", "cleanup", "--help"); strings.Contains(said, "--manifests") || !strings.Contains(said, "Usage:") {
		t.Errorf("help of a subcommand: %s", said)
	}
}
