package config_test

import (
	"strings"
	"testing"

	"github.com/kube-splice/kube-splice/config"
)

func TestValuesThatKubeProxyTakesAreTaken(t *testing.T) {
	for _, lines := range []string{
		"", "mode: userspace", "mode: iptables", "mode: ipvs", "mode: nftables",
		"bindAddress: '::'", "bindAddress: 010.0.0.1",
		"healthzBindAddress: '[::]:1'", "metricsBindAddress: 0.0.0.0:65535",
		"oomScoreAdj: -1000", "oomScoreAdj: 1000", "showHiddenMetricsForVersion: '1.36'",
		"iptables: {masqueradeBit: 31, syncPeriod: 1s, minSyncPeriod: 1s}", "nftables: {masqueradeBit: 99}",
		"nftables: {syncPeriod: 1s, minSyncPeriod: 2s}", "ipvs: {tcpTimeout: -1s, excludeCIDRs: [x]}",
		"conntrack: {maxPerCore: 0, min: 0}", "featureGates: {NobodyKnowsIt: true}",
		"nodePortAddresses: [primary, localhost, all, 10.0.0.0/8]",
		"detectLocalMode: NodeCIDR\nclusterCIDR: x", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}",
		"detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}",
		"clusterCIDR: 10.244.0.0/16", "clusterCIDR: '10.244.0.0/16,fd00::/48'", "clusterCIDR: 'fd00::/48,10.244.0.0/16'",
		"logging: {format: json, verbosity: 10}", "logging: {vmodule: [{filePattern: 'a*', verbosity: 3}]}",
	} {
		if faults := config.Validate(decode(t, lines).Config); len(faults) > 0 {
			t.Errorf("%q: %v", lines, faults)
		}
	}
}

func TestValuesThatKubeProxyRefusesAreRefusedWithTheirField(t *testing.T) {
	for _, c := range []struct{ lines, field, says string }{
		{"mode: kernelspace", "mode", "userspace, iptables, ipvs, nftables"},
		{"mode: Iptables", "mode", `"Iptables"`},
		{"bindAddress: eth0", "bindAddress", `"eth0"`},
		{"healthzBindAddress: ':10256'", "healthzBindAddress", "IP:port"},
		{"healthzBindAddress: 0.0.0.0:0", "healthzBindAddress", "65535"},
		{"metricsBindAddress: 0.0.0.0:65536", "metricsBindAddress", "65535"},
		{"metricsBindAddress: localhost:1", "metricsBindAddress", `"localhost:1"`},
		{"metricsBindAddress: 1.2.3.4:http", "metricsBindAddress", "port"},
		{"clientConnection: {burst: -1}", "clientConnection.burst", "-1"},
		{"configSyncPeriod: -1s", "configSyncPeriod", "-1s"},
		{"oomScoreAdj: -1001", "oomScoreAdj", "-1001"},
		{"oomScoreAdj: 1001", "oomScoreAdj", "1001"},
		{"showHiddenMetricsForVersion: latest", "showHiddenMetricsForVersion", `"latest"`},
		{"iptables: {masqueradeBit: 32}", "iptables.masqueradeBit", "31"},
		{"iptables: {masqueradeBit: -1}", "iptables.masqueradeBit", "31"},
		{"iptables: {syncPeriod: -1s, minSyncPeriod: 1ns}", "iptables.syncPeriod", "-1s"},
		{"iptables: {minSyncPeriod: -1s}", "iptables.minSyncPeriod", "-1s"},
		{"iptables: {syncPeriod: 1s, minSyncPeriod: 2s}", "iptables.minSyncPeriod", "2s"},
		{"mode: nftables\nnftables: {masqueradeBit: 32}", "nftables.masqueradeBit", "32"},
		{"mode: nftables\nnftables: {syncPeriod: 1s, minSyncPeriod: 2s}", "nftables.minSyncPeriod", "2s"},
		{"mode: ipvs\nipvs: {syncPeriod: 1s, minSyncPeriod: 2s}", "ipvs.minSyncPeriod", "2s"},
		{"mode: ipvs\nipvs: {tcpTimeout: -1s}", "ipvs.tcpTimeout", "-1s"},
		{"mode: ipvs\nipvs: {tcpFinTimeout: -1s}", "ipvs.tcpFinTimeout", "-1s"},
		{"mode: ipvs\nipvs: {udpTimeout: -1s}", "ipvs.udpTimeout", "-1s"},
		{"mode: ipvs\nipvs: {excludeCIDRs: [10.0.0.0/8, x]}", "ipvs.excludeCIDRs", `"x"`},
		{"conntrack: {maxPerCore: -1}", "conntrack.maxPerCore", "-1"},
		{"conntrack: {min: -1}", "conntrack.min", "-1"},
		{"conntrack: {tcpEstablishedTimeout: -1s}", "conntrack.tcpEstablishedTimeout", "-1s"},
		{"conntrack: {tcpCloseWaitTimeout: -1s}", "conntrack.tcpCloseWaitTimeout", "-1s"},
		{"conntrack: {udpTimeout: -1s}", "conntrack.udpTimeout", "-1s"},
		{"conntrack: {udpStreamTimeout: -1s}", "conntrack.udpStreamTimeout", "-1s"},
		{"nodePortAddresses: [primary, all, primary]", "nodePortAddresses", `"primary" is there twice`},
		{"detectLocalMode: Guess", "detectLocalMode", "InterfaceNamePrefix"},
		{"detectLocalMode: BridgeInterface", "detectLocal.bridgeInterface", "bridge"},
		{"detectLocalMode: InterfaceNamePrefix", "detectLocal.interfaceNamePrefix", "prefix"},
		{"clusterCIDR: 10.244.0.0", "clusterCIDR", `"10.244.0.0"`},
		{"clusterCIDR: '10.244.0.0/16,'", "clusterCIDR", "family"},
		{"clusterCIDR: '10.244.0.0/16,10.1.0.0/16'", "clusterCIDR", "family"},
		{"clusterCIDR: '10.244.0.0/16,fd00::/48,fd01::/48'", "clusterCIDR", "family"},
		{"logging: {format: xml}", "logging.format", "text or json"},
		{"logging: {flushFrequency: -1s}", "logging.flushFrequency", "-1s"},
		{"logging: {verbosity: 4000000000}", "logging.verbosity", "4000000000"},
		{"logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}", "logging.vmodule", "text"},
		{"logging: {vmodule: [{filePattern: 'a=b', verbosity: 1}]}", "logging.vmodule", `"a=b"`},
		{"logging: {vmodule: [{verbosity: 1}]}", "logging.vmodule", "pattern"},
	} {
		faults := config.Validate(decode(t, c.lines).Config)
		if len(faults) != 1 || faults[0].Field != c.field || !strings.Contains(faults[0].Problem, c.says) {
			t.Errorf("%q: %v, want one fault, of %s, that says %s", c.lines, faults, c.field, c.says)
		}
	}
}

func TestAllFaultsAreSaid(t *testing.T) {
	if faults := config.Validate(decode(t, "mode: x", "oomScoreAdj: 2000", "clusterCIDR: x").Config); len(faults) != 3 {
		t.Errorf("%v, want three faults", faults)
	}
}
