package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/redirect"
	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

// runProxy runs the proxy until ctx ends, then drains it.
func runProxy(ctx context.Context, env environment, o options) error {
	if err := o.validate(); err != nil {
		return err
	}
	log := newLog(env.Stderr, o.logFormat, o.verbosity)
	node, err := o.nodeName()
	if err != nil {
		return fmt.Errorf("find this node's name (give --hostname-override): %w", err)
	}
	rules, kept, err := openRedirect(ctx, o, log)
	if err != nil {
		return err
	}
	record, closeLog, err := openConnectionLog(env, o, log)
	if err != nil {
		return err
	}
	defer closeLog()

	config := proxy.Config{
		BindAddress: o.bind, Ports: o.ports, KeepPorts: kept, Direct: rules == nil,
		Balancer: o.balancer, DialTimeout: o.dialTimeout, KeepAlive: o.keepAlive, HalfClosed: o.halfClose,
		Record: record, Log: log,
	}
	if o.halfClose == 0 {
		config.HalfClosed = -1
	}
	if rules != nil {
		config.Mark = redirect.Mark
	}
	d := &daemon{proxy: proxy.New(config), rules: rules, period: o.syncPeriod, minPeriod: o.minSyncPeriod, log: log}
	manifests := &source.Manifests{Path: o.manifests, Stdin: env.Stdin, NodeName: node, KnownBalancer: knownBalancer, Log: log}
	log.Info("starting", "version", versionText(), "node", node, "manifests", o.manifests, "redirect", o.redirect)
	err = serve(ctx, d, manifests)
	drain(env, d.proxy, o, log)
	return err
}

// openRedirect prepares the way packets come in and tells which listener ports the
// rules in the kernel still lead to. Both are nil when there are no rules.
func openRedirect(ctx context.Context, o options, log *slog.Logger) (ruleWriter, map[service.Name]uint16, error) {
	if o.redirect == "none" {
		return nil, nil, nil
	}
	rules, err := redirect.NewIPTables(ctx, redirect.Config{NodePortAddresses: o.nodePortsOn, Log: log})
	if err != nil {
		return nil, nil, err
	}
	kept, err := rules.Listeners(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read the rules in the kernel: %w", err)
	}
	log.Info("rules are written with iptables", "kernel interface", rules.Backend(), "listener ports kept", len(kept))
	return rules, kept, nil
}

// serve runs the source and the daemon loop until ctx ends or the source cannot go
// on.
func serve(ctx context.Context, d *daemon, manifests *source.Manifests) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	snapshots := make(chan *service.Snapshot, 1)
	var loop sync.WaitGroup
	loop.Go(func() { d.run(ctx, snapshots) })
	err := manifests.Run(ctx, func(snap *service.Snapshot) { replace(snapshots, snap) })
	cancel()
	loop.Wait()
	return err
}

// replace puts snap into the channel in place of one that nobody took yet. It must
// be called from one goroutine only.
func replace(snapshots chan *service.Snapshot, snap *service.Snapshot) {
	select {
	case <-snapshots:
	default:
	}
	snapshots <- snap
}

// drain lets the connections finish, for the drain timeout at most.
func drain(env environment, p *proxy.Proxy, o options, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(env.Hurry, o.drainTimeout)
	defer cancel()
	log.Info("stopping: no new connections", "open connections", p.Counts().Active, "drain timeout", o.drainTimeout)
	p.Shutdown(ctx)
	c := p.Counts()
	log.Info("stopped", "connections", c.Accepted, "refused direct", c.RefusedDirect, "no endpoints", c.NoEndpoints,
		"dial failed", c.DialFailed, "failed dials", c.FailedTries)
}

func knownBalancer(name string) bool {
	_, ok := balancer.Lookup(name)
	return ok
}
