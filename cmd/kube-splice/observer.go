package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
	"github.com/kube-splice/kube-splice/status"
)

var families = []service.Family{service.IPv4, service.IPv6}

// observer tells package status what the daemon loop does.
type observer struct {
	node      string // this node's name
	manifests bool   // which need not hold a Node
	health    *status.Health
	metrics   *status.Metrics
	checks    *status.NodePortHealth
	events    events

	last     *service.Snapshot
	pending  changes           // not in force yet
	triggers []service.Trigger // of these
}

// newObserver returns an observer that nobody can ask yet. Close ends it.
func newObserver(o options, node string, log *slog.Logger) (*observer, error) {
	c := o.kubeProxy.config
	metrics, err := status.NewMetrics(status.MetricsConfig{
		Version: programVersion(), Config: c, Profiling: c.EnableProfiling, Statsd: o.statsdAddress, Log: log,
	})
	if err != nil {
		return nil, err
	}
	events := events{node: node}
	if o.manifests == "" {
		events.to = source.NewEvents(node)
	}
	health := status.NewHealth(status.HealthConfig{Timeout: 2 * o.syncPeriod, Metrics: metrics})
	ob := &observer{node: node, manifests: o.manifests != "", health: health, metrics: metrics, events: events}
	ob.checks = status.NewNodePortHealth(status.NodePortHealthConfig{
		Healthy:   health.Healthy,
		Addresses: func(f service.Family) ([]netip.Addr, error) { return o.nodePortsOn.Addresses(f, ob.last.NodeIPs) },
		Failed: func(c status.HealthCheck, err error) {
			log.Error("cannot answer at a healthCheckNodePort; trying again", "service", c.Namespace+"/"+c.Service, "port", c.Port, "error", err)
			events.noHealthCheck(c, err)
		},
	})
	return ob, nil
}

func (ob *observer) close() {
	ob.checks.Close()
	ob.metrics.Close()
}

// queued says that a Snapshot has come.
func (ob *observer) queued(snap *service.Snapshot) {
	ob.metrics.Sync(snap)
	now := changesBetween(ob.last, snap)
	ob.last = snap
	ob.pending.services += now.services
	ob.pending.endpoints += now.endpoints
	ob.metrics.ServiceChanges(now.services, ob.pending.services)
	ob.metrics.EndpointChanges(now.endpoints, ob.pending.endpoints)
	ob.triggers = append(ob.triggers, snap.Triggers[:min(len(snap.Triggers), service.MostTriggers-len(ob.triggers))]...)
	without := countWithoutLocal(snap)
	node := snap.Node
	node.Known = node.Known || ob.manifests
	ob.health.SyncNode(node)
	for _, f := range families {
		ob.health.QueuedUpdate(f)
		ob.metrics.Queued(f)
		ob.metrics.NoLocalEndpoints("internal", f, without[f].internal)
		ob.metrics.NoLocalEndpoints("external", f, without[f].external)
	}
}

// synced says what came of writing rules.
func (ob *observer) synced(out outcome) {
	for _, c := range out.counts {
		ob.metrics.Rules(c.Table, c.Family, c.Total, c.Written)
	}
	writer := status.IPTables
	if !out.full {
		writer = status.IPTablesPartial
	}
	if out.err != nil {
		ob.metrics.Error("rules")
	}
	for _, f := range families {
		if out.err != nil {
			ob.metrics.SyncFailed(writer, f)
		} else {
			ob.metrics.Synced(f, out.full, out.took)
		}
	}
}

// behind says that rules were written, but for a Snapshot that is no longer the latest:
// the proxy does its work, however fast changes come.
func (ob *observer) behind() {
	for _, f := range families {
		ob.health.Updated(f)
		ob.health.QueuedUpdate(f)
	}
}

// inForce says that the latest Snapshot is served.
func (ob *observer) inForce(snap *service.Snapshot) {
	for _, f := range families {
		ob.health.Updated(f)
		ob.metrics.InForce(f)
	}
	for _, t := range ob.triggers {
		ob.metrics.Programmed(t.Family, time.Since(t.At))
	}
	ob.triggers = nil
	ob.pending = changes{}
	ob.metrics.ServiceChanges(0, 0)
	ob.metrics.EndpointChanges(0, 0)
	// A check that cannot be opened is said once, and tried again when this is next
	// called: after every look at the rules.
	_ = ob.checks.Sync(healthChecks(snap))
}

// serve answers at the addresses the options give, and dumps metrics at SIGUSR1,
// until ctx ends. It returns when all of that has ended. The error is of an address
// that cannot be bound, if that is to be fatal.
func (ob *observer) serve(ctx context.Context, o options, stderr io.Writer, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := o.kubeProxy.config
	var running sync.WaitGroup
	errs := make(chan error, 2)
	start := func(name, address, failure string, handler http.Handler) {
		if address == "" {
			return
		}
		server := status.Server{Name: name, Address: address, HardFail: c.BindAddressHardFail, Failed: ob.events.notServing(failure), Log: log}
		running.Go(func() {
			if err := server.Run(ctx, handler); err != nil {
				errs <- err
				cancel()
			}
		})
	}
	start("health (--healthz-bind-address)", c.HealthzBindAddress, "FailedToStartProxierHealthcheck", ob.health)
	start("metrics (--metrics-bind-address)", c.MetricsBindAddress, "FailedToStartMetricServer", ob.metrics)
	running.Go(func() { ob.dumpAtSignal(ctx, stderr, log) })
	running.Wait()
	close(errs)
	return <-errs
}

// dumpAtSignal is the goroutine that writes the events of the last minute when
// SIGUSR1 asks for them.
func (ob *observer) dumpAtSignal(ctx context.Context, w io.Writer, log *slog.Logger) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	defer signal.Stop(signals)
	for {
		select {
		case <-signals:
			if err := ob.metrics.Dump(w); err != nil {
				log.Warn("cannot dump the metrics", "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// both passes each record to both.
func both(a, b func(proxy.Record)) func(proxy.Record) {
	if b == nil {
		return a
	}
	return func(r proxy.Record) { a(r); b(r) }
}

// healthChecks returns the health checks that load balancers may ask on this node:
// how many ready endpoints each Service with a healthCheckNodePort has here.
func healthChecks(snap *service.Snapshot) []status.HealthCheck {
	type key struct {
		namespace, service string
		family             service.Family
	}
	local := map[key]map[netip.Addr]bool{}
	port := map[key]uint16{}
	var order []key
	for _, p := range snap.Ports {
		if p.HealthCheckNodePort == 0 {
			continue
		}
		k := key{p.Name.Namespace, p.Name.Service, p.Name.Family}
		if local[k] == nil {
			local[k] = map[netip.Addr]bool{}
			order = append(order, k)
		}
		port[k] = p.HealthCheckNodePort
		for _, e := range p.Endpoints {
			if e.Ready && e.Local {
				local[k][e.Addr.Addr()] = true
			}
		}
	}
	checks := make([]status.HealthCheck, len(order))
	for i, k := range order {
		checks[i] = status.HealthCheck{Namespace: k.namespace, Service: k.service, Family: k.family, Port: port[k], LocalEndpoints: len(local[k])}
	}
	return checks
}
