package status

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	gometrics "github.com/hashicorp/go-metrics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
)

// MetricsConfig is the configuration of a Metrics; its zero value is usable.
type MetricsConfig struct {
	// Version is the program's own, for the build_info series.
	Version string
	// Config is what /configz shows, encoded as JSON; nil shows nothing.
	Config any
	// Profiling serves /debug/pprof/.
	Profiling bool
	// Statsd is the host:port of a statsd server that gets the events too, over UDP;
	// empty means none. Durations are in seconds, as their names say, and nothing
	// is sent by Service.
	Statsd string
	// Log takes failures; nil discards them.
	Log *slog.Logger
}

// Metrics takes events and answers /metrics with what came of them, with the
// proxy's counters of that moment, and with those of the Go runtime and the process.
// It is the handler of the whole metrics server. All methods may be called from any
// goroutine.
//
// Events go through go-metrics to Prometheus, to a memory of the last minute, and to
// statsd if wanted. That costs some microseconds, so the ends of connections are passed on
// as counts (see ends.go); bytes and the like are counted by the proxy.
type Metrics struct {
	cfg      MetricsConfig
	config   []byte // of /configz
	registry *prometheus.Registry
	mux      *http.ServeMux

	ends   ends
	prom   *promSink
	memory *gometrics.InmemSink
	statsd *gometrics.StatsdSink // or nil

	mu     sync.RWMutex // held for reading while an event is on its way
	events *gometrics.Metrics
	closed bool
}

// NewMetrics returns a Metrics that nothing has happened to. Close ends it.
func NewMetrics(cfg MetricsConfig) (*Metrics, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	m := &Metrics{cfg: cfg, registry: prometheus.NewRegistry(), memory: gometrics.NewInmemSink(memoryInterval, memoryRetained)}
	var err error
	if m.config, err = encodeConfig(cfg.Config); err != nil {
		return nil, err
	}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.registry.MustRegister(buildInfo(cfg.Version)...)
	m.prom = newPromSink(m.registry)
	m.mux = m.pages()

	sinks := gometrics.FanoutSink{m.prom, totals{m.memory}}
	if cfg.Statsd != "" {
		if m.statsd, err = newStatsd(cfg.Statsd, cfg.Log); err != nil {
			return nil, err
		}
		sinks = append(sinks, totals{m.statsd})
	}
	// A Config of our own: the default one prefixes names with the host's and stops
	// the world every second for numbers of the runtime, which a scrape has anyway.
	m.events, err = gometrics.New(&gometrics.Config{FilterDefault: true, TimerGranularity: time.Second}, sinks)
	return m, err
}

// Watch adds what p counts, and what log drops, to every scrape; log may be nil. It
// is to be called once.
func (m *Metrics) Watch(p *proxy.Proxy, log *proxy.ConnectionLog) {
	m.registry.MustRegister(&collector{proxy: p, log: log})
}

// Sync says which Services there are now. Series of others end; their events still
// count in the totals of the memory and of statsd.
func (m *Metrics) Sync(snap *service.Snapshot) {
	m.passEnds() // while their Services are still there
	m.prom.keep(snap)
}

// ServeHTTP answers the requests of the metrics server.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.mux.ServeHTTP(w, r) }

// Dump writes the events of the last minute as text, one interval of ten seconds
// after the other, a line for each name and labels.
func (m *Metrics) Dump(w io.Writer) error {
	m.passEnds()
	if err := dump(w, m.memory); err != nil {
		return fmt.Errorf("write the events of the last minute: %w", err)
	}
	return nil
}

// statsdFlush is longer than the statsd sink waits for more before it sends; what it
// still holds at its end it forgets.
const statsdFlush = 250 * time.Millisecond

// Close sends what statsd still has to get and ends it. Events that come later are
// ignored. It may be called again.
func (m *Metrics) Close() {
	m.passEnds()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.closed = true
	if m.statsd != nil {
		time.Sleep(statsdFlush)
		m.statsd.Shutdown()
	}
}

// emit sends an event. None must come after statsd's end, which would panic.
func (m *Metrics) emit(event func(*gometrics.Metrics)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if !m.closed {
		event(m.events)
	}
}

func (m *Metrics) count(s *series, n int, values ...string) {
	m.emit(func(to *gometrics.Metrics) { to.IncrCounterWithLabels(s.key, float32(n), s.with(values)) })
}

func (m *Metrics) set(s *series, value float64, values ...string) {
	m.emit(func(to *gometrics.Metrics) { to.SetPrecisionGaugeWithLabels(s.key, value, s.with(values)) })
}

func (m *Metrics) observe(s *series, d time.Duration, values ...string) {
	m.emit(func(to *gometrics.Metrics) { to.AddSampleWithLabels(s.key, float32(d.Seconds()), s.with(values)) })
}

// encodeConfig returns the body of /configz.
func encodeConfig(config any) ([]byte, error) {
	if config == nil {
		return []byte("{}"), nil
	}
	body, err := json.Marshal(map[string]any{"kubeproxy.config.k8s.io": config})
	if err != nil {
		return nil, fmt.Errorf("encode the configuration for /configz: %w", err)
	}
	return body, nil
}
