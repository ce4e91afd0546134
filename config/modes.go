package config

import "time"

// modes are the values of mode that run: kube-proxy's own, and the historical one.
var modes = []string{"", "userspace", "iptables", "ipvs", "nftables"}

// SyncPeriods returns how often all rules are read back from the kernel, and the
// least time between two writings of rules. They are those of the mode, as in
// kube-proxy; modes without periods of their own have those of iptables.
func SyncPeriods(c *Configuration) (full, least time.Duration) {
	switch c.Mode {
	case "ipvs":
		return c.IPVS.SyncPeriod.Duration, c.IPVS.MinSyncPeriod.Duration
	case "nftables":
		return c.NFTables.SyncPeriod.Duration, c.NFTables.MinSyncPeriod.Duration
	default:
		return c.IPTables.SyncPeriod.Duration, c.IPTables.MinSyncPeriod.Duration
	}
}
