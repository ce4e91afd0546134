package status_test

import (
	"math"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/status"
)

func TestPagesOfTheMetricsServer(t *testing.T) {
	config := struct {
		Kind string `json:"kind"`
		Mode string `json:"mode"`
	}{"KubeProxyConfiguration", "userspace"}
	url := serve(t, newMetrics(t, status.MetricsConfig{Config: config}))
	const text = "text/plain; charset=utf-8"
	wantAnswer(t, get(t, url+"/healthz"), 200, text, "ok")
	wantAnswer(t, get(t, url+"/proxyMode"), 200, text, "userspace")
	wantAnswer(t, get(t, url+"/configz"), 200, "application/json",
		`{"kubeproxy.config.k8s.io":{"kind":"KubeProxyConfiguration","mode":"userspace"}}`)
	if got := get(t, url+"/metrics"); got.code != 200 || !strings.HasPrefix(got.header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Errorf("/metrics: %d, %s", got.code, got.header.Get("Content-Type"))
	}
	for _, path := range []string{"/", "/nothing", "/debug/pprof/", "/debug/pprof/heap", "/livez"} {
		if got := get(t, url+path); got.code != 404 {
			t.Errorf("%s is answered with %d, want 404", path, got.code)
		}
	}
}

func TestProfilesAreServedIfAskedFor(t *testing.T) {
	url := serve(t, newMetrics(t, status.MetricsConfig{Profiling: true}))
	if got := get(t, url+"/debug/pprof"); got.code != 302 || got.header.Get("Location") != "/debug/pprof/" {
		t.Errorf("/debug/pprof: %d to %q", got.code, got.header.Get("Location"))
	}
	for path, part := range map[string]string{"/debug/pprof/": "goroutine", "/debug/pprof/goroutine?debug=1": "goroutine profile", "/debug/pprof/symbol": "num_symbols"} {
		if got := get(t, url+path); got.code != 200 || !strings.Contains(got.body, part) {
			t.Errorf("%s: %d, without %q", path, got.code, part)
		}
	}
}

func TestNoConfigurationIsAnEmptyObject(t *testing.T) {
	w := httptest.NewRecorder()
	newMetrics(t, status.MetricsConfig{}).ServeHTTP(w, httptest.NewRequest("GET", "/configz", nil))
	if w.Body.String() != "{}" {
		t.Errorf("/configz: %s", w.Body)
	}
}

func TestMetricsThatCannotBeAreRefused(t *testing.T) {
	for part, cfg := range map[string]status.MetricsConfig{
		"/configz":                         {Config: math.Inf(1)},
		`statsd address "localhost": want`: {Statsd: "localhost"},
	} {
		if _, err := status.NewMetrics(cfg); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%+v: %v, want an error with %q", cfg, err, part)
		}
	}
}

// happen makes every event of the control path happen once.
func happen(m *status.Metrics) {
	m.Queued(service.IPv4)
	m.Synced(service.IPv4, true, 3*time.Millisecond)
	m.Synced(service.IPv4, false, time.Millisecond)
	m.SyncFailed(status.IPTables, service.IPv4)
	m.SyncFailed(status.IPTablesPartial, service.IPv6)
	m.SyncFailed(status.NFTables, service.IPv6)
	m.Rules("nat", service.IPv4, 120, 7)
	m.Programmed(service.IPv4, 20*time.Millisecond)
	m.ServiceChanges(3, 2)
	m.EndpointChanges(5, 4)
	m.NoLocalEndpoints("external", service.IPv4, 6)
	m.Requested("200", "GET", "10.96.0.1:443")
	m.Requested("<error>", "GET", "10.96.0.1:443")
	m.RequestTook("GET", "10.96.0.1:443", 20*time.Millisecond)
	m.RequestTook("GET", "10.96.0.1:443", 5*time.Second)
	m.Error("source")
}

func TestEventsOfTheControlPathAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetrics(t, status.MetricsConfig{})
		time.Sleep(1234567 * time.Millisecond) // a time that 32 bits cannot hold
		happen(m)
		stamp := float64(time.Now().UnixNano()) / 1e9
		for line, want := range map[string]float64{
			`kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"}`: stamp,
			`kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"}`:        stamp,
			`kubeproxy_sync_proxy_rules_duration_seconds{ip_family="IPv4"}`:              2,
			`kubeproxy_sync_full_proxy_rules_duration_seconds{ip_family="IPv4"}`:         1,
			`kubeproxy_sync_partial_proxy_rules_duration_seconds{ip_family="IPv4"}`:      1,
			`kubeproxy_network_programming_duration_seconds{ip_family="IPv4"}`:           1,

			`kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family="IPv4"}`:         1,
			`kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family="IPv6"}`:         1,
			`kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family="IPv6"}`: 1,
			`kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"}`:            1,
			`kubeproxy_sync_proxy_rules_iptables_total{ip_family="IPv4",table="nat"}`:              120,
			`kubeproxy_sync_proxy_rules_iptables_last{ip_family="IPv4",table="nat"}`:               7,

			`kubeproxy_sync_proxy_rules_service_changes_total`:    3,
			`kubeproxy_sync_proxy_rules_service_changes_pending`:  2,
			`kubeproxy_sync_proxy_rules_endpoint_changes_total`:   5,
			`kubeproxy_sync_proxy_rules_endpoint_changes_pending`: 4,

			`kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="external"}`: 6,

			`rest_client_requests_total{code="200",host="10.96.0.1:443",method="GET"}`:     1,
			`rest_client_requests_total{code="<error>",host="10.96.0.1:443",method="GET"}`: 1,
			`rest_client_request_duration_seconds{host="10.96.0.1:443",verb="GET"}`:        2,

			`kubesplice_errors_total{part="source"}`: 1,
		} {
			wantSeries(t, m, line, want)
		}
	})
}

func TestDurationsAreInSeconds(t *testing.T) {
	m := newMetrics(t, status.MetricsConfig{})
	m.Synced(service.IPv4, true, 3*time.Millisecond)
	h := scrape(t, m)["kubeproxy_sync_proxy_rules_duration_seconds"].Metric[0].Histogram
	if sum := h.GetSampleSum(); math.Abs(sum-0.003) > 1e-9 {
		t.Errorf("3 ms add up to %v s", sum)
	}
	for _, b := range h.Bucket {
		want := uint64(0)
		if b.GetUpperBound() > 0.003 {
			want = 1
		}
		if b.GetCumulativeCount() != want {
			t.Errorf("bucket up to %v holds %d, want %d", b.GetUpperBound(), b.GetCumulativeCount(), want)
		}
	}
}

func TestBuildRuntimeAndProcessAreShown(t *testing.T) {
	families := scrape(t, newMetrics(t, status.MetricsConfig{Version: "v0.3.0"}))
	for _, name := range []string{"go_goroutines", "go_memstats_heap_inuse_bytes", "go_gc_duration_seconds", "process_cpu_seconds_total", "process_open_fds", "process_resident_memory_bytes", "process_start_time_seconds"} {
		if families[name] == nil {
			t.Errorf("%s is missing", name)
		}
	}
	got := map[string]string{}
	for _, l := range families["kubernetes_build_info"].Metric[0].Label {
		got[l.GetName()] = l.GetValue()
	}
	for _, name := range []string{"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform"} {
		if _, there := got[name]; !there {
			t.Errorf("kubernetes_build_info has no label %s", name)
		}
	}
	if got["major"] != "1" || got["minor"] != "37" || got["git_version"] != "v1.37.2+kube-splice.0.3.0" {
		t.Errorf("kubernetes_build_info says %v", got)
	}
}

// kube-proxy calls gauges ..._total; dashboards know them so.
func TestNamesAreAsPrometheusWantsThemButForThoseOfKubeProxy(t *testing.T) {
	m := newMetrics(t, status.MetricsConfig{})
	happen(m)
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	problems, err := promlint.New(w.Body).Lint()
	check(t, err)
	theirs := map[string]bool{
		"kubeproxy_sync_proxy_rules_no_local_endpoints_total": true,
		"kubeproxy_sync_proxy_rules_iptables_total":           true,
	}
	for _, p := range problems {
		if !theirs[p.Metric] {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
		delete(theirs, p.Metric)
	}
	if len(theirs) > 0 {
		t.Errorf("no longer frowned upon: %v", theirs)
	}
}
