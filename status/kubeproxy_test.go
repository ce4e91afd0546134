package status_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/status"
)

// exponential are the buckets of kube-proxy's syncs: 1 ms, and 14 times its double.
const exponential = "0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384"

// programmingBuckets are those of kube-proxy's network programming latency.
func programmingBuckets() string {
	bounds := []string{"0.25", "0.5"}
	for _, r := range []struct{ from, to, step int }{{1, 59, 1}, {60, 115, 5}, {120, 300, 30}} {
		for b := r.from; b <= r.to; b += r.step {
			bounds = append(bounds, fmt.Sprint(b))
		}
	}
	return strings.Join(bounds, " ")
}

// The contract with dashboards made for kube-proxy 1.37: name, type, labels, buckets.
func TestSeriesOfKubeProxyKeepTheirNamesTypesLabelsAndBuckets(t *testing.T) {
	m := newMetrics(t, status.MetricsConfig{})
	happen(m)
	m.Programmed(service.IPv4, 0)
	got := map[string]string{}
	for name, family := range scrape(t, m) {
		if strings.HasPrefix(name, "kubeproxy_") || strings.HasPrefix(name, "rest_client_") {
			got[name] = shape(family)
		}
	}
	want := map[string]string{
		"kubeproxy_sync_proxy_rules_duration_seconds":                        "HISTOGRAM ip_family " + exponential,
		"kubeproxy_sync_full_proxy_rules_duration_seconds":                   "HISTOGRAM ip_family " + exponential,
		"kubeproxy_sync_partial_proxy_rules_duration_seconds":                "HISTOGRAM ip_family " + exponential,
		"kubeproxy_sync_proxy_rules_last_timestamp_seconds":                  "GAUGE ip_family",
		"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds":           "GAUGE ip_family",
		"kubeproxy_network_programming_duration_seconds":                     "HISTOGRAM ip_family " + programmingBuckets(),
		"kubeproxy_sync_proxy_rules_endpoint_changes_pending":                "GAUGE",
		"kubeproxy_sync_proxy_rules_endpoint_changes_total":                  "COUNTER",
		"kubeproxy_sync_proxy_rules_service_changes_pending":                 "GAUGE",
		"kubeproxy_sync_proxy_rules_service_changes_total":                   "COUNTER",
		"kubeproxy_sync_proxy_rules_no_local_endpoints_total":                "GAUGE ip_family traffic_policy",
		"kubeproxy_proxy_healthz_total":                                      "COUNTER code",
		"kubeproxy_proxy_livez_total":                                        "COUNTER code",
		"kubeproxy_sync_proxy_rules_iptables_restore_failures_total":         "COUNTER ip_family",
		"kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total": "COUNTER ip_family",
		"kubeproxy_sync_proxy_rules_iptables_total":                          "GAUGE ip_family table",
		"kubeproxy_sync_proxy_rules_iptables_last":                           "GAUGE ip_family table",
		"kubeproxy_sync_proxy_rules_nftables_sync_failures_total":            "COUNTER ip_family",
		"rest_client_requests_total":                                         "COUNTER code host method",
		"rest_client_request_duration_seconds":                               "HISTOGRAM host verb 0.005 0.025 0.1 0.25 0.5 1 2 4 8 15 30 60",
	}
	for name, shape := range want {
		if got[name] != shape {
			t.Errorf("%s is\n%q, want\n%q", name, got[name], shape)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("kube-proxy has no %v", got)
	}
}

// shape tells a family's type, labels and buckets.
func shape(f *dto.MetricFamily) string {
	words := []string{f.GetType().String()}
	var labels []string
	for _, l := range f.Metric[0].Label {
		labels = append(labels, l.GetName())
	}
	slices.Sort(labels)
	words = append(words, labels...)
	for _, b := range f.Metric[0].GetHistogram().GetBucket() {
		if bound := fmt.Sprint(b.GetUpperBound()); bound != "+Inf" {
			words = append(words, bound)
		}
	}
	return strings.Join(words, " ")
}
