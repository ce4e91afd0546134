package main

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/config"
	"github.com/kube-splice/kube-splice/service"
)

// newTestObserver returns an observer of a node that nothing has happened on.
func newTestObserver(t testing.TB) *observer {
	t.Helper()
	ob, err := newObserver(options{manifests: "-", syncPeriod: time.Second, kubeProxy: &settings{config: config.Default()}}, "node", slog.New(slog.DiscardHandler))
	check(t, err)
	t.Cleanup(ob.close)
	return ob
}

// wantSeries demands lines of /metrics.
func wantSeries(t testing.TB, ob *observer, lines ...string) {
	t.Helper()
	w := httptest.NewRecorder()
	ob.metrics.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range lines {
		if !strings.Contains(w.Body.String(), "\n"+line+"\n") {
			t.Errorf("/metrics has no line %s", line)
		}
	}
}

func TestEndpointChangesAreTimedUntilTheyAreInForce(t *testing.T) {
	ob := newTestObserver(t)
	ago := func(f service.Family, d time.Duration) service.Trigger {
		return service.Trigger{Family: f, At: time.Now().Add(-d)}
	}
	plain := &service.Snapshot{}
	snapshots := make(chan *service.Snapshot, 1)
	replace(snapshots, plain.Triggered([]service.Trigger{ago(service.IPv4, time.Minute)}))
	replace(snapshots, plain.Triggered([]service.Trigger{ago(service.IPv4, time.Hour), ago(service.IPv6, 0)})) // before anybody took the first
	ob.queued(<-snapshots)
	const name = "kubeproxy_network_programming_duration_seconds"
	w := httptest.NewRecorder()
	ob.metrics.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if strings.Contains(w.Body.String(), name+"_count{") {
		t.Error("a change is timed before it is in force")
	}
	last := plain.Triggered([]service.Trigger{ago(service.IPv4, 2*time.Second)})
	ob.queued(last)
	for range 3 { // as at every look at the rules
		ob.inForce(last)
	}
	wantSeries(t, ob,
		name+`_bucket{ip_family="IPv4",le="1"} 0`, name+`_bucket{ip_family="IPv4",le="30"} 1`,
		name+`_bucket{ip_family="IPv4",le="120"} 2`, name+`_bucket{ip_family="IPv4",le="+Inf"} 3`,
		name+`_bucket{ip_family="IPv6",le="30"} 1`, name+`_count{ip_family="IPv6"} 1`)
}

// endpoints on this node, if local, or on another one.
func endpoints(local bool, ready ...bool) []service.Endpoint {
	var all []service.Endpoint
	for i, r := range ready {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, byte(i)}), 8080)
		all = append(all, service.Endpoint{Addr: addr, Ready: r, Serving: r, Local: local})
	}
	return all
}

func TestServicePortsWithoutLocalEndpointsAreCountedByPolicy(t *testing.T) {
	ob := newTestObserver(t)
	port := func(name string, f service.Family, internal, external service.Scope, its ...service.Endpoint) *service.Port {
		return &service.Port{
			Name:     service.Name{Namespace: "default", Service: name, Protocol: service.TCP, Family: f},
			Internal: internal, External: external, Endpoints: its,
		}
	}
	const cluster, local, v4, v6 = service.Cluster, service.Local, service.IPv4, service.IPv6
	draining := service.Endpoint{Serving: true, Terminating: true}
	here := draining
	here.Local = true
	snap := &service.Snapshot{Ports: []*service.Port{
		port("anywhere", v4, cluster, cluster, endpoints(false, true)...),
		port("both", v4, local, local, endpoints(false, true)...),
		port("drains-elsewhere", v4, cluster, local, draining),
		port("drains-here", v4, cluster, local, here, draining),
		port("external", v4, cluster, local, endpoints(false, false, true)...),
		port("here", v4, local, local, endpoints(true, true)...),
		port("internal", v6, local, cluster, endpoints(false, true)...),
		port("not-ready", v4, local, local, endpoints(false, false)...),
		port("nowhere", v4, local, local),
		port("not-ready-here", v6, local, cluster, append(endpoints(true, false), draining)...),
	}}
	const name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total"
	ob.queued(snap)
	wantSeries(t, ob,
		name+`{ip_family="IPv4",traffic_policy="internal"} 1`, name+`{ip_family="IPv4",traffic_policy="external"} 3`,
		name+`{ip_family="IPv6",traffic_policy="internal"} 2`, name+`{ip_family="IPv6",traffic_policy="external"} 0`)
	ob.queued(&service.Snapshot{Ports: snap.Ports[:1]})
	wantSeries(t, ob, name+`{ip_family="IPv4",traffic_policy="internal"} 0`, name+`{ip_family="IPv6",traffic_policy="internal"} 0`)
}

// An endpoint change in a cluster of 10,000 Services: what telling status costs.
func BenchmarkObserverTakesAChange(b *testing.B) {
	for _, scope := range []service.Scope{service.Cluster, service.Local} {
		b.Run(fmt.Sprint("policies ", scope), func(b *testing.B) {
			ob := newTestObserver(b)
			ports := make([]*service.Port, 10_000)
			for i := range ports {
				ports[i] = &service.Port{
					Name:     service.Name{Namespace: "default", Service: fmt.Sprintf("web-%05d", i), Protocol: service.TCP, Family: service.IPv4},
					Internal: scope, External: scope, Endpoints: endpoints(false, true, true, true, true, true, true, true, true, true, true),
				}
			}
			snap := &service.Snapshot{Ports: ports}
			for b.Loop() {
				ob.queued(snap)
			}
		})
	}
}
