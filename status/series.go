package status

import (
	"slices"
	"strings"

	gometrics "github.com/hashicorp/go-metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// series declares what events of one name are: their kind and labels never differ,
// as they must not in Prometheus.
type series struct {
	// key is the name in parts: joined by "_" for Prometheus, by "." for statsd.
	key    []string
	help   string
	kind   kind
	labels []string
	// perService series have the serviceLabels before their own one; they last as
	// long as the Service port.
	perService bool
	buckets    []float64
	preset     []string // values of the only label that are there from the start, at zero
}

type kind uint8

const (
	counter kind = iota
	gauge
	histogram
)

func (s *series) name() string { return strings.Join(s.key, "_") }

// with returns the labels with these values, in the order of s.labels.
func (s *series) with(values []string) []gometrics.Label {
	labels := make([]gometrics.Label, len(values))
	for i, value := range values {
		labels[i] = gometrics.Label{Name: s.labels[i], Value: value}
	}
	return labels
}

// The labels of a Service port, as service.Name has them.
var serviceLabels = []string{"namespace", "service", "port", "protocol", "ip_family"}

var (
	byFamily = []string{"ip_family"}
	byCode   = []string{"code"}
	byTable  = []string{"table", "ip_family"}

	// Of client-go in every program of Kubernetes.
	requestBuckets = []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}

	families = []string{"IPv4", "IPv6"}

	syncBuckets = prometheus.ExponentialBuckets(0.001, 2, 15)
	// From a quarter of a second, where an endpoint change is felt, to five minutes.
	programmingBuckets = slices.Concat(
		prometheus.LinearBuckets(0.25, 0.25, 2), prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12), prometheus.LinearBuckets(120, 30, 7))
	// From a backend on this node, 0.25 ms, to beyond the usual time budget, 8 s.
	dialBuckets = prometheus.ExponentialBuckets(0.00025, 2, 16)
)

func kubeproxy(name string) []string  { return []string{"kubeproxy", name} }
func kubesplice(name string) []string { return []string{"kubesplice", name} }

// The series of kube-proxy that mean something here, under its names.
var (
	syncDuration    = &series{key: kubeproxy("sync_proxy_rules_duration_seconds"), help: "Time taken by a writing of rules.", kind: histogram, labels: byFamily, buckets: syncBuckets}
	syncFull        = &series{key: kubeproxy("sync_full_proxy_rules_duration_seconds"), help: "Time taken by a writing of all rules.", kind: histogram, labels: byFamily, buckets: syncBuckets}
	syncPartial     = &series{key: kubeproxy("sync_partial_proxy_rules_duration_seconds"), help: "Time taken by a writing of the rules that changed.", kind: histogram, labels: byFamily, buckets: syncBuckets}
	syncLast        = &series{key: kubeproxy("sync_proxy_rules_last_timestamp_seconds"), help: "When rules were last written with success.", kind: gauge, labels: byFamily}
	syncQueued      = &series{key: kubeproxy("sync_proxy_rules_last_queued_timestamp_seconds"), help: "When a change of Services or endpoints was last noticed.", kind: gauge, labels: byFamily}
	programming     = &series{key: kubeproxy("network_programming_duration_seconds"), help: "Time from an endpoint's change, as its EndpointSlice dates it, until it was in force here.", kind: histogram, labels: byFamily, buckets: programmingBuckets}
	endpointPending = &series{key: kubeproxy("sync_proxy_rules_endpoint_changes_pending"), help: "Endpoint changes that are not in force yet.", kind: gauge}
	endpointChanges = &series{key: kubeproxy("sync_proxy_rules_endpoint_changes_total"), help: "Endpoint changes noticed.", kind: counter}
	servicePending  = &series{key: kubeproxy("sync_proxy_rules_service_changes_pending"), help: "Service changes that are not in force yet.", kind: gauge}
	serviceChanges  = &series{key: kubeproxy("sync_proxy_rules_service_changes_total"), help: "Service changes noticed.", kind: counter}
	noLocal         = &series{key: kubeproxy("sync_proxy_rules_no_local_endpoints_total"), help: "Service ports with a Local traffic policy and endpoints, but none on this node.", kind: gauge, labels: []string{"traffic_policy", "ip_family"}}
	healthzTotal    = &series{key: kubeproxy("proxy_healthz_total"), help: "Answers to /healthz.", kind: counter, labels: byCode, preset: []string{"200", "503"}}
	livezTotal      = &series{key: kubeproxy("proxy_livez_total"), help: "Answers to /livez.", kind: counter, labels: byCode, preset: []string{"200", "503"}}

	restoreFailures  = &series{key: kubeproxy("sync_proxy_rules_iptables_restore_failures_total"), help: "Writings of iptables rules that failed.", kind: counter, labels: byFamily, preset: families}
	partialFailures  = &series{key: kubeproxy("sync_proxy_rules_iptables_partial_restore_failures_total"), help: "Writings of the changed iptables rules that failed.", kind: counter, labels: byFamily, preset: families}
	nftablesFailures = &series{key: kubeproxy("sync_proxy_rules_nftables_sync_failures_total"), help: "Writings of nftables rules that failed.", kind: counter, labels: byFamily, preset: families}
	rulesTotal       = &series{key: kubeproxy("sync_proxy_rules_iptables_total"), help: "Our rules that are in force.", kind: gauge, labels: byTable}
	rulesLast        = &series{key: kubeproxy("sync_proxy_rules_iptables_last"), help: "Our rules that the last writing wrote.", kind: gauge, labels: byTable}
)

// The series of requests to the API server that dashboards of kube-proxy show.
var (
	requests        = &series{key: []string{"rest_client", "requests_total"}, help: "Requests to the API server.", kind: counter, labels: []string{"code", "method", "host"}}
	requestDuration = &series{key: []string{"rest_client", "request_duration_seconds"}, help: "Time until the API server began to answer.", kind: histogram, labels: []string{"verb", "host"}, buckets: requestBuckets}
)

// Our own series that events make; those read from counters are in collector.go.
var (
	ended        = &series{key: kubesplice("service_connections_ended_total"), help: "Connections and flows that have ended, by how, in the words of the connection log.", kind: counter, labels: append(slices.Clip(serviceLabels), "close"), perService: true}
	dialDuration = &series{key: kubesplice("dial_duration_seconds"), help: "Time from accept to a backend's answer, or until it was given up, failed dials included.", kind: histogram, labels: []string{"outcome"}, buckets: dialBuckets}
	errorsTotal  = &series{key: kubesplice("errors_total"), help: "Errors of the control path, by the part of the program.", kind: counter, labels: []string{"part"}}
)

// declared is every series that an event may be of.
var declared = []*series{
	syncDuration, syncFull, syncPartial, syncLast, syncQueued, programming,
	endpointPending, endpointChanges, servicePending, serviceChanges, noLocal, healthzTotal, livezTotal,
	restoreFailures, partialFailures, nftablesFailures, rulesTotal, rulesLast,
	requests, requestDuration, ended, dialDuration, errorsTotal,
}
