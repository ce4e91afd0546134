package config

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	netutils "k8s.io/utils/net"
)

// Fault is a value that kube-proxy would refuse too.
type Fault struct {
	// Field is the field as the file names it: "conntrack.maxPerCore".
	Field string
	// Problem says what it is and what it should be, in one line.
	Problem string
}

// faults gathers them.
type faults []Fault

func (f *faults) check(good bool, field, problem string, args ...any) {
	if !good {
		*f = append(*f, Fault{field, fmt.Sprintf(problem, args...)})
	}
}

// Validate returns what is wrong with c, which has to have its defaults. The rules
// are kube-proxy's. An empty address of a server stands for none.
func Validate(c *Configuration) []Fault {
	var f faults
	f.check(slices.Contains(modes, string(c.Mode)), "mode", "%q: want one of %s, or nothing", c.Mode, strings.Join(modes[1:], ", "))
	f.check(netutils.ParseIPSloppy(c.BindAddress) != nil, "bindAddress", "%q: want an IP address", c.BindAddress)
	f.hostPort("healthzBindAddress", c.HealthzBindAddress)
	f.hostPort("metricsBindAddress", c.MetricsBindAddress)
	f.notNegative("clientConnection.burst", c.ClientConnection.Burst)
	f.check(c.ConfigSyncPeriod.Duration > 0, "configSyncPeriod", "%v: want more than 0", c.ConfigSyncPeriod.Duration)
	f.check(*c.OOMScoreAdj >= -1000 && *c.OOMScoreAdj <= 1000, "oomScoreAdj", "%d: want -1000 to 1000", *c.OOMScoreAdj)
	f.check(minorVersion.MatchString(c.ShowHiddenMetricsForVersion), "showHiddenMetricsForVersion", "%q: want a version such as 1.36", c.ShowHiddenMetricsForVersion)
	f.mode(c)
	f.conntrack(c)
	f.keywords(c.NodePortAddresses)
	f.detectLocal(c)
	f.logging(c)
	return f
}

var minorVersion = regexp.MustCompile(`^([0-9]+\.[0-9]+)?$`)

func (f *faults) hostPort(field, address string) {
	if address == "" {
		return
	}
	host, text, err := net.SplitHostPort(address)
	port, badPort := strconv.Atoi(text)
	good := err == nil && badPort == nil && netutils.ParseIPSloppy(host) != nil && port >= 1 && port <= 65535
	f.check(good, field, "%q: want IP:port or [IPv6]:port, with an IP address and a port from 1 to 65535", address)
}

func (f *faults) notNegative(field string, n int32) {
	f.check(n >= 0, field, "%d: want 0 or more", n)
}

func (f *faults) notNegativeTime(field string, d time.Duration) {
	f.check(d >= 0, field, "%v: want 0s or more", d)
}

// mode checks what belongs to one mode, if that is the one asked for; the periods of
// userspace are those of iptables.
func (f *faults) mode(c *Configuration) {
	section := "iptables"
	f.bit("iptables.masqueradeBit", *c.IPTables.MasqueradeBit)
	switch c.Mode {
	case "ipvs":
		section = "ipvs"
		f.notNegativeTime("ipvs.tcpTimeout", c.IPVS.TCPTimeout.Duration)
		f.notNegativeTime("ipvs.tcpFinTimeout", c.IPVS.TCPFinTimeout.Duration)
		f.notNegativeTime("ipvs.udpTimeout", c.IPVS.UDPTimeout.Duration)
		for _, cidr := range c.IPVS.ExcludeCIDRs {
			f.check(isCIDR(cidr), "ipvs.excludeCIDRs", "%q: want a CIDR", cidr)
		}
	case "nftables":
		section = "nftables"
		f.bit("nftables.masqueradeBit", *c.NFTables.MasqueradeBit)
	}
	full, least := SyncPeriods(c)
	f.check(full > 0, section+".syncPeriod", "%v: want more than 0", full)
	f.notNegativeTime(section+".minSyncPeriod", least)
	f.check(full <= 0 || least <= full, section+".minSyncPeriod", "%v: want no more than the period of all syncs, %v", least, full)
}

func (f *faults) bit(field string, bit int32) {
	f.check(bit >= 0 && bit <= 31, field, "%d: want 0 to 31", bit)
}

func (f *faults) conntrack(c *Configuration) {
	t := &c.Conntrack
	f.notNegative("conntrack.maxPerCore", *t.MaxPerCore)
	f.notNegative("conntrack.min", *t.Min)
	f.notNegativeTime("conntrack.tcpEstablishedTimeout", t.TCPEstablishedTimeout.Duration)
	f.notNegativeTime("conntrack.tcpCloseWaitTimeout", t.TCPCloseWaitTimeout.Duration)
	f.notNegativeTime("conntrack.udpTimeout", t.UDPTimeout.Duration)
	f.notNegativeTime("conntrack.udpStreamTimeout", t.UDPStreamTimeout.Duration)
}

// keywords finds words given twice. CIDRs are their reader's affair.
func (f *faults) keywords(addresses []string) {
	for i, a := range addresses {
		twice := slices.Contains([]string{"primary", "localhost", "all"}, a) && slices.Contains(addresses[:i], a)
		f.check(!twice, "nodePortAddresses", "%q is there twice", a)
	}
}

// localModes are the ways to tell a pod's traffic.
var localModes = []string{"ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"}

func (f *faults) detectLocal(c *Configuration) {
	f.check(slices.Contains(localModes, string(c.DetectLocalMode)), "detectLocalMode", "%q: want one of %s", c.DetectLocalMode, strings.Join(localModes, ", "))
	switch c.DetectLocalMode {
	case "BridgeInterface":
		f.check(c.DetectLocal.BridgeInterface != "", "detectLocal.bridgeInterface", "want the name of the bridge, for mode BridgeInterface")
	case "InterfaceNamePrefix":
		f.check(c.DetectLocal.InterfaceNamePrefix != "", "detectLocal.interfaceNamePrefix", "want a prefix, for mode InterfaceNamePrefix")
	case "ClusterCIDR":
		f.clusterCIDR(c.ClusterCIDR)
	}
}

func (f *faults) clusterCIDR(text string) {
	if text == "" {
		return
	}
	const want = "want a CIDR such as 10.244.0.0/16, or one of each family with a comma between"
	cidrs := strings.Split(text, ",")
	for _, cidr := range cidrs {
		if !isCIDR(cidr) {
			f.check(false, "clusterCIDR", "%q: "+want, text)
			return
		}
	}
	one := len(cidrs) == 1
	f.check(one || len(cidrs) == 2 && netutils.IsIPv6CIDRString(cidrs[0]) != netutils.IsIPv6CIDRString(cidrs[1]), "clusterCIDR", "%q: "+want, text)
}

func isCIDR(text string) bool {
	_, _, err := netutils.ParseCIDRSloppy(text)
	return err == nil
}

// ClusterCIDRs returns the networks of a valid clusterCIDR, one a family at most. As in
// kube-proxy, leading zeros of a number mean nothing.
func ClusterCIDRs(c *Configuration) []netip.Prefix {
	var cidrs []netip.Prefix
	for text := range strings.SplitSeq(c.ClusterCIDR, ",") {
		if _, cidr, err := netutils.ParseCIDRSloppy(text); err == nil {
			cidrs = append(cidrs, netip.MustParsePrefix(cidr.String()))
		}
	}
	return cidrs
}

func (f *faults) logging(c *Configuration) {
	l := &c.Logging
	f.check(l.Format == "text" || l.Format == "json", "logging.format", "%q: want text or json", l.Format)
	f.check(l.FlushFrequency.Duration.Duration > 0, "logging.flushFrequency", "%v: want more than 0", l.FlushFrequency.Duration.Duration)
	f.check(l.Verbosity <= math.MaxInt32, "logging.verbosity", "%d: want %d at most", l.Verbosity, math.MaxInt32)
	f.check(len(l.VModule) == 0 || l.Format != "json", "logging.vmodule", "works with format text only")
	for _, item := range l.VModule {
		good := item.FilePattern != "" && !strings.ContainsAny(item.FilePattern, "=,") && item.Verbosity <= math.MaxInt32
		f.check(good, "logging.vmodule", "%q: want a file pattern without = and comma, and a verbosity", item.FilePattern)
	}
}
