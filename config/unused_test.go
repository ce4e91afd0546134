package config_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kube-splice/kube-splice/config"
)

func TestFieldsWithoutAMeaningAreNamedWhenTheyAreSet(t *testing.T) {
	for _, c := range []struct{ lines, want string }{
		{"", ""},
		{"featureGates: {B: false, A: true}", "featureGates.A featureGates.B"},
		{"featureGates: {AllowServiceExternalIPs: false}", ""},
		{"featureGates: {AllowServiceExternalIPs: true, A: true}", "featureGates.A"},
		{"showHiddenMetricsForVersion: '1.36'", "showHiddenMetricsForVersion"},
		{"configSyncPeriod: 1m", "configSyncPeriod"},
		{"iptables: {masqueradeBit: 14, masqueradeAll: false, localhostNodePorts: true}", ""},
		{"iptables: {masqueradeBit: 0, masqueradeAll: true, localhostNodePorts: false}", "iptables.masqueradeBit iptables.masqueradeAll iptables.localhostNodePorts"},
		{"ipvs: {scheduler: lc}", ""},
		{"ipvs: {excludeCIDRs: [10.0.0.0/8], strictARP: true, tcpTimeout: 1s, tcpFinTimeout: 1s, udpTimeout: 1s}",
			"ipvs.excludeCIDRs ipvs.strictARP ipvs.tcpTimeout ipvs.tcpFinTimeout ipvs.udpTimeout"},
		{"nftables: {masqueradeBit: 1, masqueradeAll: true}", "nftables.masqueradeBit nftables.masqueradeAll"},
		{"winkernel: {networkName: net, sourceVip: s, enableDSR: true, rootHnsEndpointName: r, forwardHealthCheckVip: true}\nwindowsRunAsService: true",
			"winkernel.networkName winkernel.sourceVip winkernel.enableDSR winkernel.rootHnsEndpointName winkernel.forwardHealthCheckVip windowsRunAsService"},
		{"logging: {flushFrequency: 1s, vmodule: [{filePattern: a, verbosity: 1}], options: {text: {splitStream: true, infoBufferSize: 1k}, json: {splitStream: true, infoBufferSize: 1k}}}",
			"logging.flushFrequency logging.vmodule logging.options.text.splitStream logging.options.text.infoBufferSize logging.options.json.splitStream logging.options.json.infoBufferSize"},
		{"logging: {format: json, verbosity: 5}", ""},
		{"iptables: {syncPeriod: 1m, minSyncPeriod: 1s}", ""},
		{"ipvs: {syncPeriod: 1m, minSyncPeriod: 1s}", "ipvs.syncPeriod ipvs.minSyncPeriod"},
		{"nftables: {syncPeriod: 1m, minSyncPeriod: 1s}", "nftables.syncPeriod nftables.minSyncPeriod"},
		{"mode: ipvs\nipvs: {syncPeriod: 1m, minSyncPeriod: 1s}\niptables: {syncPeriod: 1m, minSyncPeriod: 1s}", "iptables.syncPeriod iptables.minSyncPeriod"},
		{"mode: nftables\nnftables: {syncPeriod: 1m, minSyncPeriod: 1s}", ""},
		{"mode: iptables\nportRange: 1-2\nhostnameOverride: node\nconntrack: {min: 1}\ndetectLocalMode: NodeCIDR\nclusterCIDR: 10.0.0.0/8\noomScoreAdj: 1\nenableProfiling: true\nnodePortAddresses: [all]", ""},
	} {
		if got := config.Unused(decode(t, c.lines).Config); !slices.Equal(got, strings.Fields(c.want)) {
			t.Errorf("%q: %v, want %s", c.lines, got, c.want)
		}
	}
}

func TestVModuleIsReadAsKubeProxyReadsIt(t *testing.T) {
	c := config.Default()
	check(t, config.SetVModule(c, "a=1,b*=2"))
	if want := decode(t, "logging: {vmodule: [{filePattern: a, verbosity: 1}, {filePattern: b*, verbosity: 2}]}").Config; !reflect.DeepEqual(c.Logging.VModule, want.Logging.VModule) {
		t.Errorf("%v, want %v", c.Logging.VModule, want.Logging.VModule)
	}
	if err := config.SetVModule(c, "a"); err == nil {
		t.Error("a pattern without a verbosity was taken")
	}
}
