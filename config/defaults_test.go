package config_test

import (
	"strings"
	"testing"

	"github.com/kube-splice/kube-splice/config"
)

// TestDefaults has every value that is not zero in a configuration without fields.
// Those marked with ours differ from kube-proxy's.
func TestDefaults(t *testing.T) {
	path := t.TempDir() + "/defaults.yaml"
	check(t, config.Write(path, decode(t).Config))
	written, err := config.Read(path)
	check(t, err)
	const want = `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 10
  contentType: application/vnd.kubernetes.protobuf
  kubeconfig: ""
  qps: 5
clusterCIDR: ""
configSyncPeriod: 15m0s
conntrack:
  maxPerCore: 32768
  min: 131072
  tcpBeLiberal: false
  tcpCloseWaitTimeout: 1h0m0s
  tcpEstablishedTimeout: 24h0m0s
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ClusterCIDR
enableProfiling: false
healthzBindAddress: 0.0.0.0:10256
hostnameOverride: ""
iptables:
  localhostNodePorts: true
  masqueradeAll: false
  masqueradeBit: 14
  minSyncPeriod: 100ms # ours
  syncPeriod: 30s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 100ms # ours
  scheduler: ""
  strictARP: false
  syncPeriod: 30s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
kind: KubeProxyConfiguration
logging:
  flushFrequency: 5s
  format: text
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
metricsBindAddress: 127.0.0.1:10249
mode: ""
nftables:
  masqueradeAll: false
  masqueradeBit: 14
  minSyncPeriod: 100ms # ours
  syncPeriod: 30s
nodePortAddresses: null
oomScoreAdj: -999
portRange: ""
showHiddenMetricsForVersion: ""
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: ""
  rootHnsEndpointName: ""
  sourceVip: ""
`
	if got := "\n" + string(written.Text); got != strings.ReplaceAll(want, " # ours", "") {
		t.Errorf("the defaults are%s", got)
	}
}

func TestWhatAFileGivesIsKept(t *testing.T) {
	c := decode(t, "iptables: {syncPeriod: 1m, minSyncPeriod: 1s, masqueradeBit: 0, localhostNodePorts: false}", "conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}",
		"oomScoreAdj: 0", "clientConnection: {qps: -1, burst: 1, contentType: application/json}", "logging: {flushFrequency: 1000000000}").Config
	for name, good := range map[string]bool{
		"iptables periods": c.IPTables.SyncPeriod.Duration.String() == "1m0s" && c.IPTables.MinSyncPeriod.Duration.String() == "1s",
		"iptables rest":    *c.IPTables.MasqueradeBit == 0 && !*c.IPTables.LocalhostNodePorts,
		"conntrack":        *c.Conntrack.MaxPerCore+*c.Conntrack.Min == 0 && c.Conntrack.TCPEstablishedTimeout.Duration+c.Conntrack.TCPCloseWaitTimeout.Duration == 0,
		"oomScoreAdj":      *c.OOMScoreAdj == 0,
		"clientConnection": c.ClientConnection.QPS == -1 && c.ClientConnection.Burst == 1 && c.ClientConnection.ContentType == "application/json",
		"logging":          c.Logging.FlushFrequency.Duration.Duration.String() == "1s",
	} {
		if !good {
			t.Errorf("%s was changed: %+v", name, c)
		}
	}
}

func TestServersAreOfTheFamilyOfTheBindAddressAndHavePorts(t *testing.T) {
	for _, c := range []struct{ lines, healthz, metrics string }{
		{"", "0.0.0.0:10256", "127.0.0.1:10249"},
		{"bindAddress: 172.20.1.2", "0.0.0.0:10256", "127.0.0.1:10249"},
		{"bindAddress: '::'", "[::]:10256", "[::1]:10249"},
		{"bindAddress: nonsense", "0.0.0.0:10256", "127.0.0.1:10249"},
		{"healthzBindAddress: 127.0.0.1\nmetricsBindAddress: '::1'", "127.0.0.1:10256", "[::1]:10249"},
		{"healthzBindAddress: 127.0.0.1:1\nmetricsBindAddress: '[::1]:2'", "127.0.0.1:1", "[::1]:2"},
	} {
		if got := decode(t, c.lines).Config; got.HealthzBindAddress != c.healthz || got.MetricsBindAddress != c.metrics {
			t.Errorf("%q: %s and %s, want %s and %s", c.lines, got.HealthzBindAddress, got.MetricsBindAddress, c.healthz, c.metrics)
		}
	}
}

func TestPeriodsAreThoseOfTheMode(t *testing.T) {
	const all = "iptables: {syncPeriod: 1m, minSyncPeriod: 1s}\nipvs: {syncPeriod: 2m, minSyncPeriod: 2s}\nnftables: {syncPeriod: 3m, minSyncPeriod: 3s}\nmode: "
	for mode, want := range map[string]string{"''": "1m0s 1s", "userspace": "1m0s 1s", "iptables": "1m0s 1s", "ipvs": "2m0s 2s", "nftables": "3m0s 3s"} {
		full, least := config.SyncPeriods(decode(t, all+mode).Config)
		if got := full.String() + " " + least.String(); got != want {
			t.Errorf("%s: %s, want %s", mode, got, want)
		}
	}
}
