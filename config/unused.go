package config

import (
	"maps"
	"slices"
)

// Unused returns the fields of c that say something other than the default and have
// no meaning for a userspace proxy, or none yet. They are named as in the file:
// "ipvs.strictARP". c has to have its defaults.
func Unused(c *Configuration) []string {
	var unused []string
	for _, gate := range slices.Sorted(maps.Keys(c.FeatureGates)) {
		if gate != gateExternalIPs {
			unused = append(unused, "featureGates."+gate)
		}
	}
	for _, f := range unusedFields(c, Default()) {
		if f.set {
			unused = append(unused, f.name)
		}
	}
	return unused
}

type field struct {
	name string
	set  bool // to something other than the default
}

func unusedFields(c, d *Configuration) []field {
	userspace := c.Mode != "ipvs" && c.Mode != "nftables"
	return slices.Concat([]field{
		{"showHiddenMetricsForVersion", c.ShowHiddenMetricsForVersion != ""},
		{"configSyncPeriod", c.ConfigSyncPeriod != d.ConfigSyncPeriod},
		{"iptables.masqueradeBit", differ(c.IPTables.MasqueradeBit, d.IPTables.MasqueradeBit)},
		{"iptables.masqueradeAll", c.IPTables.MasqueradeAll},
		{"iptables.localhostNodePorts", differ(c.IPTables.LocalhostNodePorts, d.IPTables.LocalhostNodePorts)},
		{"iptables.syncPeriod", !userspace && c.IPTables.SyncPeriod != d.IPTables.SyncPeriod},
		{"iptables.minSyncPeriod", !userspace && c.IPTables.MinSyncPeriod != d.IPTables.MinSyncPeriod},
		{"ipvs.syncPeriod", c.Mode != "ipvs" && c.IPVS.SyncPeriod != d.IPVS.SyncPeriod},
		{"ipvs.minSyncPeriod", c.Mode != "ipvs" && c.IPVS.MinSyncPeriod != d.IPVS.MinSyncPeriod},
		{"ipvs.excludeCIDRs", len(c.IPVS.ExcludeCIDRs) > 0},
		{"ipvs.strictARP", c.IPVS.StrictARP},
		{"ipvs.tcpTimeout", c.IPVS.TCPTimeout.Duration != 0},
		{"ipvs.tcpFinTimeout", c.IPVS.TCPFinTimeout.Duration != 0},
		{"ipvs.udpTimeout", c.IPVS.UDPTimeout.Duration != 0},
		{"nftables.masqueradeBit", differ(c.NFTables.MasqueradeBit, d.NFTables.MasqueradeBit)},
		{"nftables.masqueradeAll", c.NFTables.MasqueradeAll},
		{"nftables.syncPeriod", c.Mode != "nftables" && c.NFTables.SyncPeriod != d.NFTables.SyncPeriod},
		{"nftables.minSyncPeriod", c.Mode != "nftables" && c.NFTables.MinSyncPeriod != d.NFTables.MinSyncPeriod},
	}, unusedWindowsFields(c), unusedLoggingFields(c, d))
}

func unusedWindowsFields(c *Configuration) []field {
	return []field{
		{"winkernel.networkName", c.Winkernel.NetworkName != ""},
		{"winkernel.sourceVip", c.Winkernel.SourceVip != ""},
		{"winkernel.enableDSR", c.Winkernel.EnableDSR},
		{"winkernel.rootHnsEndpointName", c.Winkernel.RootHnsEndpointName != ""},
		{"winkernel.forwardHealthCheckVip", c.Winkernel.ForwardHealthCheckVip},
		{"windowsRunAsService", c.WindowsRunAsService},
	}
}

func unusedLoggingFields(c, d *Configuration) []field {
	text, json := &c.Logging.Options.Text, &c.Logging.Options.JSON
	return []field{
		{"logging.flushFrequency", c.Logging.FlushFrequency.Duration != d.Logging.FlushFrequency.Duration},
		{"logging.vmodule", len(c.Logging.VModule) > 0},
		{"logging.options.text.splitStream", text.SplitStream},
		{"logging.options.text.infoBufferSize", text.InfoBufferSize.Value() != 0},
		{"logging.options.json.splitStream", json.SplitStream},
		{"logging.options.json.infoBufferSize", json.InfoBufferSize.Value() != 0},
	}
}

func differ[T comparable](a, b *T) bool { return *a != *b }
