package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/kube-splice/kube-splice/config"
)

// kubeProxyFlags are the flags of kube-proxy 1.37, by kind. Most of them are fields
// of its configuration file, and say the same. kubeproxy.go makes one thing of both.
type kubeProxyFlags struct {
	config *config.Configuration // what the flags say

	file        string
	writeTo     string
	initOnly    bool
	master      string
	hostname    string
	healthzPort int32
	metricsPort int32
	process     *pflag.FlagSet // in force with a file too
	logging     *pflag.FlagSet // likewise, and stronger
	fields      *pflag.FlagSet // those that a file replaces
	meaningless *pflag.FlagSet // likewise, and of no use here
}

func newKubeProxyFlags() *kubeProxyFlags {
	k := &kubeProxyFlags{config: config.Default()}
	k.process, k.logging, k.fields, k.meaningless = newFlagSet(), newFlagSet(), newFlagSet(), newFlagSet()
	k.addProcessFlags(k.process)
	k.addLoggingFlags(k.logging)
	k.addFieldFlags(k.fields)
	k.fields.AddFlagSet(conntrackFlags(&k.config.Conntrack))
	k.addMeaninglessFlags(k.meaningless)
	return k
}

func newFlagSet() *pflag.FlagSet {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.SortFlags = false
	return f
}

func (k *kubeProxyFlags) addProcessFlags(f *pflag.FlagSet) {
	f.StringVar(&k.file, "config", "", "kube-proxy's configuration file (KubeProxyConfiguration); of the flags below, it leaves in force those of this group and of logging. When it changes, the program ends with status 0, to be started again")
	f.StringVar(&k.writeTo, "write-config-to", "", "write the configuration with all defaults to this file and exit")
	f.BoolVar(&k.initOnly, "init-only", false, "set the conntrack limits, which takes root, and exit")
	f.StringVar(&k.hostname, "hostname-override", "", "this node's name; default: the host name")
	f.StringVar(&k.master, "master", "", "URL of the API server, instead of the one in the kubeconfig")
}

func (k *kubeProxyFlags) addLoggingFlags(f *pflag.FlagSet) {
	l := &k.config.Logging
	f.StringVar(&l.Format, "logging-format", l.Format, "format of the log on standard error: text or json")
	f.StringVar(&l.Format, "log-format", l.Format, "the same")
	_ = f.MarkHidden("log-format") // the flag was just defined
	f.Uint32VarP((*uint32)(&l.Verbosity), "v", "v", uint32(l.Verbosity), "verbosity of the log; 4 and more includes what is only for debugging")
}

func (k *kubeProxyFlags) addFieldFlags(f *pflag.FlagSet) {
	c := k.config
	client := &c.ClientConnection
	f.StringVar(&client.Kubeconfig, "kubeconfig", "", "file that says how to reach the API server, instead of manifests; default, in a pod: its service account")
	f.StringVar(&client.ContentType, "kube-api-content-type", client.ContentType, "content type to ask the API server for")
	f.Float32Var(&client.QPS, "kube-api-qps", client.QPS, "requests a second to the API server")
	f.Int32Var(&client.Burst, "kube-api-burst", client.Burst, "requests to the API server that may come at once")
	f.StringVar((*string)(&c.Mode), "proxy-mode", "", "userspace; iptables, ipvs and nftables are accepted and run as userspace")
	f.StringVar(&c.BindAddress, "bind-address", c.BindAddress, "address the listeners bind to; 0.0.0.0 or ::, every address of both families")
	f.StringSliceVar(&c.NodePortAddresses, "nodeport-addresses", nil, "addresses of this node that answer on node ports: CIDRs, primary, localhost, all; default: all (the port is held on every address)")
	f.StringVar(&c.HealthzBindAddress, "healthz-bind-address", c.HealthzBindAddress, "where /healthz and /livez answer; empty: nowhere")
	f.StringVar(&c.MetricsBindAddress, "metrics-bind-address", c.MetricsBindAddress, "where /metrics and /proxyMode answer; empty: nowhere")
	f.Int32Var(&k.healthzPort, "healthz-port", config.HealthzPort, "old: 0 is an empty --healthz-bind-address, another one the port of one without")
	f.Int32Var(&k.metricsPort, "metrics-port", config.MetricsPort, "old: the same for --metrics-bind-address")
	f.BoolVar(&c.BindAddressHardFail, "bind-address-hard-fail", false, "end when one of the addresses to answer at cannot be bound, rather than try again")
	f.BoolVar(&c.EnableProfiling, "profiling", false, "serve /debug/pprof/ at the metrics address")
	full, least := &c.IPTables.SyncPeriod.Duration, &c.IPTables.MinSyncPeriod.Duration
	f.DurationVar(full, "iptables-sync-period", *full, "how often all rules are read back from the kernel and put right, 1 s at the least; lost jumps are noticed within 5 s")
	f.DurationVar(least, "iptables-min-sync-period", *least, "least time between two writings of rules")
	f.DurationVar(&c.IPVS.SyncPeriod.Duration, "ipvs-sync-period", *full, "the first of these two for --proxy-mode ipvs")
	f.DurationVar(&c.IPVS.MinSyncPeriod.Duration, "ipvs-min-sync-period", *least, "the second")
	f.StringVar(&c.IPVS.Scheduler, "ipvs-scheduler", "", "balancing policy by an IPVS scheduler's name, when there is no --balancer")
	f.StringVar((*string)(&c.DetectLocalMode), "detect-local-mode", string(c.DetectLocalMode), "how to tell traffic of this node's pods: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix")
	f.StringVar(&c.ClusterCIDR, "cluster-cidr", "", "addresses of the cluster's pods: a CIDR, or one of each family with a comma between")
	f.StringVar(&c.DetectLocal.BridgeInterface, "pod-bridge-interface", "", "the bridge of this node's pods")
	f.StringVar(&c.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "", "what the names of this node's pods' interfaces begin with")
	f.Func("feature-gates", "a list of NAME=true and NAME=false; AllowServiceExternalIPs=false serves no externalIPs, the other gates have no meaning here", k.setFeatureGates)
	f.Int32Var(c.OOMScoreAdj, "oom-score-adj", *c.OOMScoreAdj, "the process's oom_score_adj, -1000 to 1000; with --manifests only if given")
}

// conntrackFlags bind to c, whose pointers must not be nil, and have its values as
// defaults.
func conntrackFlags(c *config.Conntrack) *pflag.FlagSet {
	f := newFlagSet()
	f.Int32Var(c.MaxPerCore, "conntrack-max-per-core", *c.MaxPerCore, "connections to track for each CPU; 0: leave the limit. It is only ever raised. With --manifests, this and the next six only if given")
	f.Int32Var(c.Min, "conntrack-min", *c.Min, "connections to track at the least")
	for _, timeout := range []struct {
		to          *time.Duration
		name, usage string
	}{
		{&c.TCPEstablishedTimeout.Duration, "conntrack-tcp-timeout-established", "time after which an idle TCP connection is no longer tracked; 0: leave it"},
		{&c.TCPCloseWaitTimeout.Duration, "conntrack-tcp-timeout-close-wait", "the same in state CLOSE_WAIT"},
		{&c.UDPTimeout.Duration, "conntrack-udp-timeout", "the same for UDP without an answer"},
		{&c.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", "the same for UDP with answers"},
	} {
		f.DurationVar(timeout.to, timeout.name, *timeout.to, timeout.usage)
	}
	f.BoolVar(&c.TCPBeLiberal, "conntrack-tcp-be-liberal", c.TCPBeLiberal, "let pass TCP segments that are out of the window")
	return f
}

func (k *kubeProxyFlags) addMeaninglessFlags(f *pflag.FlagSet) {
	c := k.config
	f.StringVar(&c.ShowHiddenMetricsForVersion, "show-hidden-metrics-for-version", "", "no metric is hidden")
	f.Int32Var(c.IPTables.MasqueradeBit, "iptables-masquerade-bit", *c.IPTables.MasqueradeBit, "nothing is masqueraded")
	f.BoolVar(&c.IPTables.MasqueradeAll, "masquerade-all", false, "likewise")
	f.BoolVar(c.IPTables.LocalhostNodePorts, "iptables-localhost-nodeports", *c.IPTables.LocalhostNodePorts, "--nodeport-addresses decides")
	f.StringSliceVar(&c.IPVS.ExcludeCIDRs, "ipvs-exclude-cidrs", nil, "there are no IPVS rules")
	f.BoolVar(&c.IPVS.StrictARP, "ipvs-strict-arp", false, "likewise")
	f.DurationVar(&c.IPVS.TCPTimeout.Duration, "ipvs-tcp-timeout", 0, "likewise")
	f.DurationVar(&c.IPVS.TCPFinTimeout.Duration, "ipvs-tcpfin-timeout", 0, "likewise")
	f.DurationVar(&c.IPVS.UDPTimeout.Duration, "ipvs-udp-timeout", 0, "likewise")
	f.DurationVar(&c.ConfigSyncPeriod.Duration, "config-sync-period", c.ConfigSyncPeriod.Duration, "watches tell of every change")
	l := &c.Logging
	f.DurationVar(&l.FlushFrequency.Duration.Duration, "log-flush-frequency", l.FlushFrequency.Duration.Duration, "the log is not buffered")
	f.Func("vmodule", "one verbosity holds for all files; a list of PATTERN=N", func(text string) error { return config.SetVModule(c, text) })
	f.BoolVar(&l.Options.Text.SplitStream, "log-text-split-stream", false, "there is one stream")
	f.Var(&l.Options.Text.InfoBufferSize, "log-text-info-buffer-size", "the log is not buffered")
	f.BoolVar(&l.Options.JSON.SplitStream, "log-json-split-stream", false, "there is one stream")
	f.Var(&l.Options.JSON.InfoBufferSize, "log-json-info-buffer-size", "the log is not buffered")
}

func (k *kubeProxyFlags) setFeatureGates(text string) error {
	for entry := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(entry), "=")
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if err != nil || name == "" {
			return fmt.Errorf("%q: want NAME=true or NAME=false", entry)
		}
		k.config.FeatureGates[strings.TrimSpace(name)] = on
	}
	return nil
}

// flagOf has the flags that stand for a field of the configuration by another name
// than the file's.
var flagOf = map[string]string{
	"bindAddress":                         "bind-address",
	"clientConnection.burst":              "kube-api-burst",
	"clusterCIDR":                         "cluster-cidr",
	"configSyncPeriod":                    "config-sync-period",
	"conntrack.maxPerCore":                "conntrack-max-per-core",
	"conntrack.min":                       "conntrack-min",
	"conntrack.tcpCloseWaitTimeout":       "conntrack-tcp-timeout-close-wait",
	"conntrack.tcpEstablishedTimeout":     "conntrack-tcp-timeout-established",
	"conntrack.udpStreamTimeout":          "conntrack-udp-timeout-stream",
	"conntrack.udpTimeout":                "conntrack-udp-timeout",
	"detectLocal.bridgeInterface":         "pod-bridge-interface",
	"detectLocal.interfaceNamePrefix":     "pod-interface-name-prefix",
	"detectLocalMode":                     "detect-local-mode",
	"healthzBindAddress":                  "healthz-bind-address",
	"iptables.localhostNodePorts":         "iptables-localhost-nodeports",
	"iptables.masqueradeAll":              "masquerade-all",
	"iptables.masqueradeBit":              "iptables-masquerade-bit",
	"iptables.minSyncPeriod":              "iptables-min-sync-period",
	"iptables.syncPeriod":                 "iptables-sync-period",
	"ipvs.excludeCIDRs":                   "ipvs-exclude-cidrs",
	"ipvs.minSyncPeriod":                  "ipvs-min-sync-period",
	"ipvs.scheduler":                      "ipvs-scheduler",
	"ipvs.strictARP":                      "ipvs-strict-arp",
	"ipvs.syncPeriod":                     "ipvs-sync-period",
	"ipvs.tcpFinTimeout":                  "ipvs-tcpfin-timeout",
	"ipvs.tcpTimeout":                     "ipvs-tcp-timeout",
	"ipvs.udpTimeout":                     "ipvs-udp-timeout",
	"logging.flushFrequency":              "log-flush-frequency",
	"logging.format":                      "logging-format",
	"logging.options.json.infoBufferSize": "log-json-info-buffer-size",
	"logging.options.json.splitStream":    "log-json-split-stream",
	"logging.options.text.infoBufferSize": "log-text-info-buffer-size",
	"logging.options.text.splitStream":    "log-text-split-stream",
	"logging.verbosity":                   "v",
	"logging.vmodule":                     "vmodule",
	"metricsBindAddress":                  "metrics-bind-address",
	"mode":                                "proxy-mode",
	"nftables.masqueradeAll":              "masquerade-all",
	"nftables.minSyncPeriod":              "iptables-min-sync-period",
	"nftables.syncPeriod":                 "iptables-sync-period",
	"nodePortAddresses":                   "nodeport-addresses",
	"oomScoreAdj":                         "oom-score-adj",
	"portRange":                           "proxy-port-range",
	"showHiddenMetricsForVersion":         "show-hidden-metrics-for-version",
}
