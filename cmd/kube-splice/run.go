package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/proxy/relay"
	"github.com/kube-splice/kube-splice/redirect"
	"github.com/kube-splice/kube-splice/service"
)

// runProxy runs the proxy until ctx ends, then drains it.
func runProxy(ctx context.Context, env environment, o options) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // from here on it ends nothing, whoever listens
	defer signal.Stop(hangups)
	log, node, err := prepare(env, &o)
	if err != nil {
		return err
	}
	ctx, cancel := o.kubeProxy.untilFileChanges(ctx, log)
	defer cancel()
	ob, err := newObserver(o, node, log)
	if err != nil {
		return err
	}
	defer ob.close()
	from, place, err := openServices(env, o, ob, log)
	if err != nil {
		return err
	}
	in, err := openRedirection(ctx, o, log)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	defer in.close()
	o.kubeProxy.say(log)
	o.kubeProxy.applyToKernel(o.manifests == "", log)
	records, err := openConnectionLog(env, o, hangups, log)
	if err != nil {
		return err
	}
	defer records.close()
	log.Info("starting", "version", versionText(), "node", node, "services", place, "redirect", in.name, "listener ports kept", len(in.kept))
	ob.events.started()
	d, err := newDaemon(o, in, ob, records, log)
	if err != nil {
		return err
	}
	d.ready = dropPrivileges(o, in, log)
	err = serve(ctx, env, o, d, from)
	in.close()
	drain(env, d.proxy, o, log)
	return err
}

// unlessEnded returns err, or nil when we were told to stop: err says no more than that.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// prepare checks the options and returns the log and this node's name.
func prepare(env environment, o *options) (log *slog.Logger, node string, err error) {
	if err := o.validate(); err != nil {
		return nil, "", err
	}
	log = newLog(env.Stderr, o.kubeProxy.config.Logging.Format, int(o.kubeProxy.config.Logging.Verbosity))
	if node, err = o.nodeName(); err != nil {
		return nil, "", fmt.Errorf("find this node's name (give --hostname-override): %w", err)
	}
	return log, node, nil
}

// newDaemon returns the daemon loop with its Proxy, which the caller shuts down.
func newDaemon(o options, in *redirection, ob *observer, records *connectionLog, log *slog.Logger) (*daemon, error) {
	config := proxyConfig(o, in, both(ob.metrics.Record, records.record), log)
	config.Trouble = ob.events.trouble
	var err error
	if config.Engine, err = relayEngine(o); err != nil {
		return nil, err
	}
	d := &daemon{
		proxy: proxy.New(config), rules: in.rules, pods: o.pods, observer: ob,
		period: o.syncPeriod, minPeriod: o.minSyncPeriod, log: log,
	}
	ob.metrics.Watch(d.proxy, records.log)
	return d, nil
}

func proxyConfig(o options, in *redirection, record func(proxy.Record), log *slog.Logger) proxy.Config {
	c := proxy.Config{
		BindAddress: o.bind, Ports: o.ports, KeepPorts: in.kept,
		Balancer: o.balancer, DialTimeout: o.dialTimeout, KeepAlive: o.keepAlive, HalfClosed: o.halfClose,
		UDPTimeout: o.udpTimeout, MaxFlows: o.udpMaxFlows,
		Trusted: o.trusted, HeaderTimeout: o.headerTimeout,
		Record: record, Log: log,
	}
	if o.halfClose == 0 {
		c.HalfClosed = -1
	}
	if in.rules == nil {
		c.Direct = true
	} else {
		c.Mark = redirect.Mark
		c.Preserve = proxy.Preserve{Mark: redirect.ClientMark, Possible: in.rules.MayPreserve}
	}
	return c
}

// relayEngine starts what relays TCP; the Proxy closes it.
func relayEngine(o options) (relay.Engine, error) {
	if o.relay == "copy" {
		return relay.NewCopier(), nil
	}
	return relay.NewLoops(o.relayLoops)
}

// redirection is how packets reach the listeners.
type redirection struct {
	name  string
	rules ruleWriter                      // nil: clients connect to the listeners themselves
	nft   bool                            // the programs that write them are nft's
	kept  map[service.ListenerName]uint16 // the listener ports that rules found in the kernel lead to
	alone io.Closer                       // our claim to be the only one that writes rules
}

// openRedirection prepares the way that the options name.
func openRedirection(ctx context.Context, o options, log *slog.Logger) (*redirection, error) {
	if o.redirect == "none" {
		return &redirection{name: o.redirect}, nil
	}
	raisePrivileges(log)
	rules, err := redirect.NewIPTables(ctx, redirect.Config{NodePortAddresses: o.nodePortsOn, Log: log})
	if err != nil {
		return nil, err
	}
	alone, err := standAlone(ctx)
	if err != nil {
		return nil, err
	}
	kept, err := rules.Listeners(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the rules in the kernel: %w", err), alone.Close())
	}
	return &redirection{name: "iptables (" + rules.Backend() + ")", rules: rules, nft: rules.Backend() == "nft", kept: kept, alone: alone}, nil
}

// close lets another process write rules. It may be called again.
func (r *redirection) close() {
	if r.alone != nil {
		_ = r.alone.Close()
	}
}

// serve runs the source, the daemon loop and the servers of package status until ctx
// ends or one of them cannot go on.
func serve(ctx context.Context, env environment, o options, d *daemon, from services) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	snapshots := make(chan *service.Snapshot, 1)
	var running sync.WaitGroup
	var statusErr error
	running.Go(func() { d.run(ctx, snapshots) })
	running.Go(func() {
		statusErr = d.observer.serve(ctx, o, env.Stderr, d.log)
		cancel()
	})
	err := from.Run(ctx, func(snap *service.Snapshot) { replace(snapshots, snap) })
	cancel()
	running.Wait()
	return errors.Join(err, statusErr)
}

// replace puts snap into the channel in place of one that nobody took yet. It must
// be called from one goroutine only.
func replace(snapshots chan *service.Snapshot, snap *service.Snapshot) {
	select {
	case missed := <-snapshots:
		snap = snap.InPlaceOf(missed)
	default:
	}
	snapshots <- snap
}

// drain lets the connections finish, for the drain timeout at most.
func drain(env environment, p *proxy.Proxy, o options, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(env.Hurry, o.drainTimeout)
	defer cancel()
	log.Info("stopping: no new connections", "open connections", p.Counts().Active, "UDP flows", p.FlowCounts().Active, "drain timeout", o.drainTimeout)
	p.Shutdown(ctx)
	c, f := p.Counts(), p.FlowCounts()
	log.Info("stopped", "connections", c.Accepted, "UDP flows", f.Accepted, "not led here", c.RefusedDirect, "denied", c.Denied,
		"without an endpoint", c.NoEndpoints, "without an answer", c.DialFailed+f.Refused, "failed dials", c.FailedTries,
		"affinity records evicted", c.Evicted, "UDP flows evicted", f.Engine.Evicted, "datagrams dropped", f.Dropped())
}
