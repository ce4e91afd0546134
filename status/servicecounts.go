package status

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
)

func serviceDesc(name, help string, labels ...string) *prometheus.Desc {
	return desc("service_"+name, help, slices.Concat(serviceLabels, labels)...)
}

var (
	serviceConnections = serviceDesc("connections_total", "Connections, of UDP flows, taken from the listeners of a Service port.")
	serviceActive      = serviceDesc("connections_active", "Connections, of UDP flows, of a Service port that have a backend and have not ended.")
	serviceBytes       = serviceDesc("bytes_total", "Bytes relayed for a Service port, client to backend (up) and back (down), counted when a connection or flow ends.", "direction")
	serviceDatagrams   = serviceDesc("datagrams_total", "Datagrams relayed for a UDP Service port, as its bytes.", "direction")
	serviceDialsFailed = serviceDesc("dial_failures_total", "Dials of a Service port's endpoints that failed, or datagrams that they refused.")
	serviceEndpoints   = serviceDesc("endpoints", "Endpoints that may be given connections.")
	serviceAffinity    = serviceDesc("affinity_records", "Clients that session affinity remembers; only of Service ports that have it.")
)

// collectService tells one Service port's counts.
func collectService(metrics chan<- prometheus.Metric, s proxy.ServiceCounts) {
	own := servicePairs(s.Name)
	metrics <- &sample{serviceConnections, prometheus.CounterValue, own, float64(s.Accepted)}
	metrics <- &sample{serviceActive, prometheus.GaugeValue, own, float64(s.Active)}
	metrics <- &sample{serviceBytes, prometheus.CounterValue, slices.Concat(upPair, own), float64(s.Up)}
	metrics <- &sample{serviceBytes, prometheus.CounterValue, slices.Concat(downPair, own), float64(s.Down)}
	metrics <- &sample{serviceDialsFailed, prometheus.CounterValue, own, float64(s.FailedTries)}
	metrics <- &sample{serviceEndpoints, prometheus.GaugeValue, own, float64(s.Endpoints)}
	if s.Name.Protocol == service.UDP {
		metrics <- &sample{serviceDatagrams, prometheus.CounterValue, slices.Concat(upPair, own), float64(s.DatagramsUp)}
		metrics <- &sample{serviceDatagrams, prometheus.CounterValue, slices.Concat(downPair, own), float64(s.DatagramsDown)}
	}
	if s.Affinity {
		metrics <- &sample{serviceAffinity, prometheus.GaugeValue, own, float64(s.AffinityRecords)}
	}
}

// sample is one series at the moment of a scrape. Those of a Service port share their
// labels: with constant metrics of the library, of which each has its own, a scrape of
// 10,000 Services takes twice the time and memory.
type sample struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	labels []*dto.LabelPair // in the order of their names
	value  float64
}

// Desc returns the description.
func (s *sample) Desc() *prometheus.Desc { return s.desc }

// Write fills in the series.
func (s *sample) Write(out *dto.Metric) error {
	out.Label = s.labels
	if s.kind == prometheus.CounterValue {
		out.Counter = &dto.Counter{Value: &s.value}
	} else {
		out.Gauge = &dto.Gauge{Value: &s.value}
	}
	return nil
}

var (
	upPair, downPair = directionPair("up"), directionPair("down")
	directionName    = "direction"
)

func directionPair(value string) []*dto.LabelPair {
	return []*dto.LabelPair{{Name: &directionName, Value: &value}}
}

// servicePairs returns the labels of a Service port.
func servicePairs(name service.Name) []*dto.LabelPair {
	values := serviceValues(name)
	labels := make([]*dto.LabelPair, len(values))
	for i := range values {
		labels[i] = &dto.LabelPair{Name: &serviceLabels[i], Value: &values[i]}
	}
	slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return labels
}
