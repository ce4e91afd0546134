package status

import (
	"strings"
	"sync"

	gometrics "github.com/hashicorp/go-metrics"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-splice/kube-splice/service"
)

// promSink brings events to Prometheus. Where go-metrics' own sink takes names and
// labels as they come, loses increments that race to be the first, and forgets what was
// idle for a minute, this one knows every series beforehand: labels are put in
// their declared order, what is not declared is left to the other sinks, and a
// series ends only with its Service.
type promSink struct {
	*gometrics.BlackholeSink // for the methods that Metrics and FanoutSink never call
	byName                   map[string]*family
	dials                    map[outcome]prometheus.Observer // dialDuration's, which are not brought here

	mu   sync.RWMutex
	live *service.Snapshot // whose Services have series; nil before the first
}

// family is a series with the children it has in Prometheus. One of the vectors is
// set, by its kind.
type family struct {
	*series
	counters   *prometheus.CounterVec
	gauges     *prometheus.GaugeVec
	histograms *prometheus.HistogramVec
	seen       sync.Map // values that the last label of a perService series has had
}

// outcome is how the search for a backend ended.
type outcome string

const (
	reached outcome = "reached"
	failed  outcome = "failed"
)

// newPromSink returns a sink whose series are registered.
func newPromSink(registry *prometheus.Registry) *promSink {
	sink := &promSink{byName: map[string]*family{}}
	for _, s := range declared {
		f := &family{series: s}
		switch s.kind {
		case counter:
			f.counters = prometheus.NewCounterVec(prometheus.CounterOpts{Name: s.name(), Help: s.help}, s.labels)
			registry.MustRegister(f.counters)
		case gauge:
			f.gauges = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: s.name(), Help: s.help}, s.labels)
			registry.MustRegister(f.gauges)
		case histogram:
			f.histograms = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: s.name(), Help: s.help, Buckets: s.buckets}, s.labels)
			registry.MustRegister(f.histograms)
		}
		f.create()
		sink.byName[s.name()] = f
	}
	dials := sink.byName[dialDuration.name()].histograms
	sink.dials = map[outcome]prometheus.Observer{reached: dials.WithLabelValues(string(reached)), failed: dials.WithLabelValues(string(failed))}
	delete(sink.byName, dialDuration.name())
	return sink
}

// create makes the children that are there before anything happens: rate() sees an
// increment only if it knows the zero before.
func (f *family) create() {
	for _, value := range f.preset {
		f.counters.WithLabelValues(value)
	}
	if len(f.labels) > 0 {
		return
	}
	switch f.kind {
	case counter:
		f.counters.WithLabelValues()
	case gauge:
		f.gauges.WithLabelValues()
	}
}

// IncrCounterWithLabels adds to a counter. One of a Service that is gone is left as
// it is: its connections may outlive it.
func (p *promSink) IncrCounterWithLabels(key []string, val float32, labels []gometrics.Label) {
	f := p.find(key, counter)
	if f == nil {
		return
	}
	values := f.values(labels)
	if f.perService {
		p.mu.RLock() // so that it does not leave between the look and the increment
		defer p.mu.RUnlock()
		if p.live == nil || p.live.Port(nameOf(values)) == nil {
			return
		}
		f.seen.LoadOrStore(values[len(values)-1], nil)
	}
	f.counters.WithLabelValues(values...).Add(float64(val))
}

// SetPrecisionGaugeWithLabels sets a gauge. The other kind of gauge, of 32 bits, would
// be a minute wrong about the time and is not used.
func (p *promSink) SetPrecisionGaugeWithLabels(key []string, val float64, labels []gometrics.Label) {
	if f := p.find(key, gauge); f != nil {
		f.gauges.WithLabelValues(f.values(labels)...).Set(val)
	}
}

// AddSampleWithLabels adds to a histogram.
func (p *promSink) AddSampleWithLabels(key []string, val float32, labels []gometrics.Label) {
	if f := p.find(key, histogram); f != nil {
		f.histograms.WithLabelValues(f.values(labels)...).Observe(float64(val))
	}
}

func (p *promSink) find(key []string, k kind) *family {
	if f := p.byName[strings.Join(key, "_")]; f != nil && f.kind == k {
		return f
	}
	return nil
}

// values returns the values of the declared labels in their order; one that is not
// given is empty. Prometheus takes no invalid UTF-8.
func (f *family) values(labels []gometrics.Label) []string {
	values := make([]string, len(f.labels))
	for i, name := range f.labels {
		for _, label := range labels {
			if label.Name == name {
				values[i] = strings.ToValidUTF8(label.Value, "\uFFFD")
			}
		}
	}
	return values
}

// keep makes snap's Services the live ones and drops the series of those that were
// live until now. Ports that stayed cost a comparison of pointers.
func (p *promSink) keep(snap *service.Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.live
	p.live = snap
	if before == nil {
		return
	}
	i := 0
	for _, port := range before.Ports {
		for i < len(snap.Ports) && snap.Ports[i] != port && snap.Ports[i].Name.Compare(port.Name) < 0 {
			i++
		}
		if i < len(snap.Ports) && snap.Ports[i].Name == port.Name {
			i++
			continue
		}
		p.forget(port.Name)
	}
}

// forget drops the series of a Service port.
func (p *promSink) forget(name service.Name) {
	for _, f := range p.byName {
		if !f.perService {
			continue
		}
		values := append(serviceValues(name), "")
		f.seen.Range(func(own, _ any) bool {
			values[len(values)-1] = own.(string)
			f.counters.DeleteLabelValues(values...)
			return true
		})
	}
}

// serviceValues returns the values of serviceLabels.
func serviceValues(name service.Name) []string {
	values := []string{name.Namespace, name.Service, name.Port, string(name.Protocol), name.Family.String()}
	for i, value := range values {
		values[i] = strings.ToValidUTF8(value, "\uFFFD")
	}
	return values
}

// nameOf is the way back from serviceValues.
func nameOf(values []string) service.Name {
	name := service.Name{Namespace: values[0], Service: values[1], Port: values[2], Protocol: service.Protocol(values[3]), Family: service.IPv4}
	if values[4] == service.IPv6.String() {
		name.Family = service.IPv6
	}
	return name
}
