package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/config"
	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/redirect"
	"github.com/kube-splice/kube-splice/service"
)

// options are the flags of the bare command: our own here, kube-proxy's in the
// settings.
type options struct {
	manifests     string
	redirect      string
	portRange     string
	balancer      string
	relay         string
	relayLoops    int
	dialTimeout   time.Duration
	keepAlive     net.KeepAliveConfig
	halfClose     time.Duration
	udpTimeout    time.Duration
	udpMaxFlows   int
	trustedCIDRs  []string
	headerTimeout time.Duration
	updateEvery   time.Duration
	drainTimeout  time.Duration
	connectionLog string
	connectionOut string

	statsdAddress string

	kubeProxy *settings

	// What validate made of the text above.
	bind          netip.Addr
	trusted       []netip.Prefix
	ports         proxy.PortRange
	nodePortsOn   redirect.NodePortAddresses
	pods          func(*service.Snapshot) redirect.PodTraffic
	syncPeriod    time.Duration
	minSyncPeriod time.Duration
}

// mostLoops keeps a slip of the pen from starting a million event loops.
const mostLoops = 1024

const ipvsNames = "rr, wrr, lc, wlc, sh, mh, sed, nq; weights are all equal"

func (o *options) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.manifests, "manifests", "", "file or folder of Services, EndpointSlices, Endpoints and Nodes in YAML or JSON, followed as it changes; - reads standard input once")
	f.StringVar(&o.redirect, "redirect", "iptables", "how packets reach the listeners: iptables, or none (clients connect to the listeners themselves)")
	f.StringVar(&o.portRange, "proxy-port-range", "", "ports for the listeners: FIRST-LAST, FIRST+COUNT or one port; keep it apart from the node port range; default: portRange of the --config file, or else the kernel's ephemeral ports")
	f.StringVar(&o.balancer, "balancer", "", "balancing policy of Services that name none: "+strings.Join(balancer.Names(), ", ")+", or an IPVS scheduler name ("+ipvsNames+"); default: --ipvs-scheduler, or else "+balancer.Default)
	f.StringVar(&o.relay, "relay", "loop", "how connections are relayed: loop (event loops), or copy (two goroutines each; slower, the reference)")
	f.IntVar(&o.relayLoops, "relay-loops", 0, "event loops of --relay=loop; 0: one for each processor the process may use")
	f.DurationVar(&o.dialTimeout, "dial-timeout", 5*time.Second, "time budget for reaching a backend, all tries together")
	f.DurationVar(&o.keepAlive.Idle, "tcp-keepalive-idle", 15*time.Second, "idle time before the first TCP keepalive probe, on both legs of a connection; negative: no keepalive")
	f.DurationVar(&o.keepAlive.Interval, "tcp-keepalive-interval", 15*time.Second, "time between TCP keepalive probes")
	f.IntVar(&o.keepAlive.Count, "tcp-keepalive-count", 9, "unanswered TCP keepalive probes that end a connection")
	f.DurationVar(&o.halfClose, "half-close-timeout", time.Hour, "end a connection of which one direction has ended when no byte moves in the other for this long; 0: never")
	f.DurationVar(&o.udpTimeout, "udp-timeout", 30*time.Second, "end a UDP flow when no datagram passes in either direction for this long, where the Service has no idle-timeout of its own")
	f.IntVar(&o.udpMaxFlows, "udp-max-flows", 65536, "UDP flows at the most, each with a descriptor and a port of ip_local_port_range; the least recently used one makes room")
	f.StringSliceVar(&o.trustedCIDRs, "proxy-protocol-trusted-cidrs", nil, "address ranges of the load balancers whose PROXY headers say who the client is; Services want them by the annotation kube-splice.io/accept-proxy-protocol: required")
	f.DurationVar(&o.headerTimeout, "proxy-protocol-header-timeout", 3*time.Second, "how long they may take to send the header, from the beginning of the connection")
	f.DurationVar(&o.updateEvery, "min-update-interval", 5*time.Millisecond, "least time between two updates from the API server: changes that come meanwhile are taken together, one after a longer quiet at once")
	f.DurationVar(&o.drainTimeout, "drain-timeout", 30*time.Second, "how long connections may go on after SIGTERM before they are reset")
	f.StringVar(&o.connectionLog, "connection-log", "off", "one line for each connection that has ended: off, text or json")
	f.StringVar(&o.connectionOut, "connection-log-file", "", "file the connection log is appended to; default: standard output")
	f.StringVar(&o.statsdAddress, "statsd-address", "", "host:port of a statsd server that is sent the events of /metrics too, over UDP; empty: none")
}

// validate checks what pflag cannot.
func (o *options) validate() error {
	kubeconfig := o.kubeProxy.config.ClientConnection.Kubeconfig
	if o.manifests != "" && (kubeconfig != "" && o.kubeProxy.file == nil || o.kubeProxy.flags.master != "") {
		return usagef("--manifests and an API server (--kubeconfig, --master) are both given: Services come from one of them")
	}
	if _, err := os.Stat(o.manifests); err != nil && o.manifests != "" && o.manifests != "-" {
		return usagef("--manifests: %w; give the file or folder that holds your Services", err)
	}
	for _, choice := range []struct{ flag, value, allowed string }{
		{"redirect", o.redirect, "iptables none"},
		{"relay", o.relay, "loop copy"},
		{"connection-log", o.connectionLog, "off text json"},
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
	if err := checkStatsd(o.statsdAddress); err != nil && o.statsdAddress != "" {
		return usagef("--statsd-address %q: %w", o.statsdAddress, err)
	}
	if err := o.validateNumbers(); err != nil {
		return err
	}
	if err := o.readTrusted(); err != nil {
		return err
	}
	return o.validateSettings()
}

// validateSettings checks the settings, and reads those that other packages read in
// their own way.
func (o *options) validateSettings() error {
	c := o.kubeProxy.config
	if o.portRange != "" {
		c.PortRange = o.portRange
	}
	faults := config.Validate(c)
	found := func(field string, err error) {
		if err != nil {
			faults = append(faults, config.Fault{Field: field, Problem: err.Error()})
		}
	}
	var errs [3]error
	o.bind, errs[0] = listenAddress(c.BindAddress)
	o.ports, errs[1] = proxy.ParsePortRange(c.PortRange)
	o.nodePortsOn, errs[2] = redirect.ParseNodePortAddresses(c.NodePortAddresses)
	found("bindAddress", errs[0])
	found("portRange", errs[1])
	found("nodePortAddresses", errs[2])
	o.pods = podTraffic(c)
	found(detectLocalField(c), o.pods(&service.Snapshot{}).Check())
	o.syncPeriod, o.minSyncPeriod = config.SyncPeriods(c)
	o.syncPeriod = max(o.syncPeriod, time.Second)
	if _, known := balancer.Lookup(c.IPVS.Scheduler); known && o.balancer == "" {
		o.balancer = c.IPVS.Scheduler
	}
	return o.kubeProxy.refuse(faults)
}

// listenAddress reads a bind address. What is no address at all is said by others.
func listenAddress(text string) (netip.Addr, error) {
	addr, ok := config.ParseIP(text)
	if !ok {
		return netip.Addr{}, nil
	}
	if err := service.CheckEndpoint(addr); err != nil && !addr.IsUnspecified() {
		return netip.Addr{}, fmt.Errorf("%s: packets from pods cannot be led to a loopback, link-local or multicast address; give another address of this node, or 0.0.0.0", addr)
	}
	return addr, nil
}

func (o *options) validateNumbers() error {
	for _, period := range []struct {
		flag  string
		value time.Duration
		least time.Duration
	}{
		{"dial-timeout", o.dialTimeout, time.Millisecond},
		{"half-close-timeout", o.halfClose, 0},
		{"udp-timeout", o.udpTimeout, time.Millisecond},
		{"proxy-protocol-header-timeout", o.headerTimeout, time.Millisecond},
		{"drain-timeout", o.drainTimeout, 0},
		{"min-update-interval", o.updateEvery, 0},
		{"tcp-keepalive-interval", o.keepAlive.Interval, time.Second},
	} {
		if period.value < period.least {
			return usagef("--%s %v: want %v or more", period.flag, period.value, period.least)
		}
	}
	if o.relayLoops < 0 || o.relayLoops > mostLoops {
		return usagef("--relay-loops %d: want 0 to %d", o.relayLoops, mostLoops)
	}
	if o.udpMaxFlows < 1 {
		return usagef("--udp-max-flows %d: want 1 or more", o.udpMaxFlows)
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

// readTrusted reads the peers that are trusted to say who their client is.
func (o *options) readTrusted() error {
	o.trusted = nil
	for _, text := range o.trustedCIDRs {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil || prefix.Addr().Is4In6() {
			return usagef("--proxy-protocol-trusted-cidrs: %q is no address range; write it like 192.0.2.0/24 or 2001:db8::/64", text)
		}
		o.trusted = append(o.trusted, prefix.Masked())
	}
	return nil
}

// checkStatsd returns why address is no host:port to send to.
func checkStatsd(address string) error {
	host, port, err := net.SplitHostPort(address)
	switch {
	case err != nil:
		return err
	case host == "":
		return errors.New("want a host before the port")
	}
	if n, err := net.LookupPort("udp", port); err != nil || n == 0 {
		return errors.New("want a port from 1 to 65535")
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
	if name := o.kubeProxy.config.HostnameOverride; name != "" {
		return name, nil
	}
	name, err := os.Hostname()
	return strings.ToLower(strings.TrimSpace(name)), err
}
