package main

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/redirect"
	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/status"
)

// options are the flags of the bare command. Where kube-proxy has, or had, a flag
// for the same thing, it has the same name.
type options struct {
	manifests     string
	kubeconfig    string
	master        string
	redirect      string
	hostname      string
	bindAddress   string
	portRange     string
	nodePorts     []string
	balancer      string
	dialTimeout   time.Duration
	keepAlive     net.KeepAliveConfig
	halfClose     time.Duration
	syncPeriod    time.Duration
	minSyncPeriod time.Duration
	drainTimeout  time.Duration
	connectionLog string
	connectionOut string
	logFormat     string
	verbosity     int

	healthzAddress string
	metricsAddress string
	statsdAddress  string
	hardFail       bool
	profiling      bool

	// What validate made of the text above.
	bind        netip.Addr
	ports       proxy.PortRange
	nodePortsOn redirect.NodePortAddresses
}

const ipvsNames = "rr, wrr, lc, wlc, sh, mh, sed, nq; weights are all equal"

func (o *options) addFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&o.manifests, "manifests", "", "file or folder of Services, EndpointSlices, Endpoints and Nodes in YAML or JSON, followed as it changes; - reads standard input once")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "file that says how to reach the API server, instead of manifests; default, in a pod: its service account")
	f.StringVar(&o.master, "master", "", "URL of the API server, instead of the one in the kubeconfig")
	f.StringVar(&o.redirect, "redirect", "iptables", "how packets reach the listeners: iptables, or none (clients connect to the listeners themselves)")
	f.StringVar(&o.hostname, "hostname-override", "", "this node's name; default: the host name")
	f.StringVar(&o.bindAddress, "bind-address", "0.0.0.0", "address the listeners bind to; 0.0.0.0 or ::, every address of both families")
	f.StringVar(&o.portRange, "proxy-port-range", "", "ports for the listeners: FIRST-LAST, FIRST+COUNT or one port; keep it apart from the node port range; default: the kernel's ephemeral ports")
	f.StringSliceVar(&o.nodePorts, "nodeport-addresses", nil, "addresses of this node that answer on node ports: CIDRs, primary, localhost, all; default: all (the port is held on every address)")
	f.StringVar(&o.balancer, "balancer", balancer.Default, "balancing policy of Services that name none: "+strings.Join(balancer.Names(), ", ")+", or an IPVS scheduler name ("+ipvsNames+")")
	f.DurationVar(&o.dialTimeout, "dial-timeout", 5*time.Second, "time budget for reaching a backend, all tries together")
	f.DurationVar(&o.keepAlive.Idle, "tcp-keepalive-idle", 15*time.Second, "idle time before the first TCP keepalive probe, on both legs of a connection; negative: no keepalive")
	f.DurationVar(&o.keepAlive.Interval, "tcp-keepalive-interval", 15*time.Second, "time between TCP keepalive probes")
	f.IntVar(&o.keepAlive.Count, "tcp-keepalive-count", 9, "unanswered TCP keepalive probes that end a connection")
	f.DurationVar(&o.halfClose, "half-close-timeout", time.Hour, "end a connection of which one direction has ended when no byte moves in the other for this long; 0: never")
	f.DurationVar(&o.syncPeriod, "iptables-sync-period", 30*time.Second, "how often all rules are read back from the kernel and put right; lost jumps are noticed within 5 s")
	f.DurationVar(&o.minSyncPeriod, "iptables-min-sync-period", 100*time.Millisecond, "least time between two writings of rules")
	f.DurationVar(&o.drainTimeout, "drain-timeout", 30*time.Second, "how long connections may go on after SIGTERM before they are reset")
	f.StringVar(&o.connectionLog, "connection-log", "off", "one line for each connection that has ended: off, text or json")
	f.StringVar(&o.connectionOut, "connection-log-file", "", "file the connection log is appended to; default: standard output")
	f.StringVar(&o.healthzAddress, "healthz-bind-address", status.DefaultHealthAddress, "where /healthz and /livez answer; empty: nowhere")
	f.StringVar(&o.metricsAddress, "metrics-bind-address", status.DefaultMetricsAddress, "where /metrics and /proxyMode answer; empty: nowhere")
	f.StringVar(&o.statsdAddress, "statsd-address", "", "host:port of a statsd server that is sent the events of /metrics too, over UDP; empty: none")
	f.BoolVar(&o.hardFail, "bind-address-hard-fail", false, "end when one of these two addresses cannot be bound, rather than try again")
	f.BoolVar(&o.profiling, "profiling", false, "serve /debug/pprof/ at the metrics address")
	f.StringVar(&o.logFormat, "log-format", "text", "format of the log on standard error: text or json")
	f.IntVarP(&o.verbosity, "v", "v", 2, "verbosity of the log; 4 and more includes what is only for debugging")
}

// validate checks what pflag cannot.
func (o *options) validate() error {
	if o.manifests != "" && (o.kubeconfig != "" || o.master != "") {
		return usagef("--manifests and an API server (--kubeconfig, --master) are both given: Services come from one of them")
	}
	if _, err := os.Stat(o.manifests); err != nil && o.manifests != "" && o.manifests != "-" {
		return usagef("--manifests: %w; give the file or folder that holds your Services", err)
	}
	for _, choice := range []struct{ flag, value, allowed string }{
		{"redirect", o.redirect, "iptables none"},
		{"connection-log", o.connectionLog, "off text json"},
		{"log-format", o.logFormat, "text json"},
	} {
		if !oneOf(choice.value, choice.allowed) {
			return usagef("--%s %q: want one of %s", choice.flag, choice.value, strings.ReplaceAll(choice.allowed, " ", ", "))
		}
	}
	if o.connectionOut != "" && o.connectionLog == "off" {
		return usagef("--connection-log-file is of no use with --connection-log=off: say text or json")
	}
	if _, ok := balancer.Lookup(o.balancer); !ok {
		return usagef("--balancer %q: want one of %s, or %s", o.balancer, strings.Join(balancer.Names(), ", "), ipvsNames)
	}
	var err error
	if o.nodePortsOn, err = redirect.ParseNodePortAddresses(o.nodePorts); err != nil {
		return usagef("--nodeport-addresses: %w", err)
	}
	return o.validateAddresses()
}

func (o *options) validateAddresses() error {
	var err error
	if o.bind, err = netip.ParseAddr(o.bindAddress); err != nil {
		return usagef("--bind-address %q: want an IP address", o.bindAddress)
	}
	if err := service.CheckEndpoint(o.bind); err != nil && !o.bind.IsUnspecified() || o.bind.Zone() != "" {
		return usagef("--bind-address %s: packets from pods cannot be led to a loopback, link-local or multicast address; give another address of this node, or 0.0.0.0", o.bind)
	}
	if o.ports, err = proxy.ParsePortRange(o.portRange); err != nil {
		return usagef("--proxy-port-range: %w", err)
	}
	for flag, address := range map[string]string{"healthz-bind-address": o.healthzAddress, "metrics-bind-address": o.metricsAddress} {
		if err := checkHostPort(address); err != nil && address != "" {
			return usagef("--%s %q: %w", flag, address, err)
		}
	}
	if err := checkStatsd(o.statsdAddress); err != nil && o.statsdAddress != "" {
		return usagef("--statsd-address %q: %w", o.statsdAddress, err)
	}
	return o.validateNumbers()
}

func (o *options) validateNumbers() error {
	for _, period := range []struct {
		flag  string
		value time.Duration
		least time.Duration
	}{
		{"dial-timeout", o.dialTimeout, time.Millisecond},
		{"half-close-timeout", o.halfClose, 0},
		{"iptables-sync-period", o.syncPeriod, time.Second},
		{"iptables-min-sync-period", o.minSyncPeriod, 0},
		{"drain-timeout", o.drainTimeout, 0},
		{"tcp-keepalive-interval", o.keepAlive.Interval, time.Second},
	} {
		if period.value < period.least {
			return usagef("--%s %v: want %v or more", period.flag, period.value, period.least)
		}
	}
	if o.minSyncPeriod > o.syncPeriod {
		return usagef("--iptables-min-sync-period %v is more than --iptables-sync-period %v", o.minSyncPeriod, o.syncPeriod)
	}
	o.keepAlive.Enable = o.keepAlive.Idle > 0
	const longest = 32767 * time.Second // MAX_TCP_KEEPIDLE, MAX_TCP_KEEPINTVL of the kernel
	if o.keepAlive.Idle > longest || o.keepAlive.Interval > longest {
		return usagef("--tcp-keepalive-idle and --tcp-keepalive-interval: want %v or less", longest)
	}
	if o.keepAlive.Count < 1 || o.keepAlive.Count > 127 {
		return usagef("--tcp-keepalive-count %d: want 1 to 127", o.keepAlive.Count)
	}
	return nil
}

func oneOf(value, allowed string) bool {
	for _, a := range strings.Fields(allowed) {
		if value == a {
			return true
		}
	}
	return false
}

// nodeName is this node's name as its Node object has it.
func (o *options) nodeName() (string, error) {
	name := o.hostname
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return "", err
		}
	}
	return strings.ToLower(strings.TrimSpace(name)), nil
}
