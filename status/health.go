package status

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/kube-splice/kube-splice/service"
)

// HealthConfig is the configuration of a Health; its zero value is usable.
type HealthConfig struct {
	// Timeout is how long an update may be pending before the proxy is unhealthy; 0
	// means a minute. kube-proxy takes twice its syncPeriod.
	Timeout time.Duration
	// Metrics counts the answers by status code. May be nil.
	Metrics *Metrics
}

// Health knows whether updates reach the data path in time and whether the node is
// to be given traffic. It is the handler of /healthz, which load balancers ask, and of
// /livez, which is for restarting the proxy and leaves the node out.
//
// A family counts from its first Updated on: until then it is starting, which is
// healthy. All methods may be called from any goroutine.
type Health struct {
	cfg HealthConfig
	mux *http.ServeMux

	mu      sync.Mutex
	updated map[service.Family]time.Time
	pending map[service.Family]time.Time // since when an update has been waiting
	node    service.Node
}

// eligible reports whether the node may be given traffic.
func eligible(n service.Node) bool { return n.Known && !n.Deleting && !n.Tainted }

// NewHealth returns a Health that is healthy, of a node that is not known.
func NewHealth(cfg HealthConfig) *Health {
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	h := &Health{cfg: cfg, mux: http.NewServeMux(), updated: map[service.Family]time.Time{}, pending: map[service.Family]time.Time{}}
	h.mux.HandleFunc("/healthz", h.healthz)
	h.mux.HandleFunc("/livez", h.livez)
	return h
}

// QueuedUpdate says that there is something to bring to the data path of a family.
// What was waiting before goes on counting from then.
func (h *Health) QueuedUpdate(f service.Family) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, waiting := h.pending[f]; !waiting {
		h.pending[f] = time.Now()
	}
}

// Updated says that everything queued for a family is in force.
func (h *Health) Updated(f service.Family) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pending, f)
	h.updated[f] = time.Now()
}

// SyncNode says how the node is now. A proxy that has no Node object to go by says
// service.Node{Known: true} once.
func (h *Health) SyncNode(n service.Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.node = n
}

// Healthy reports whether no family's update is overdue; the node has no say.
func (h *Health) Healthy() bool { return h.report().Healthy }

// ServeHTTP answers /healthz and /livez.
func (h *Health) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

// healthReport is the body of both answers, as kube-proxy's.
type healthReport struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyReport `json:"status,omitempty"`
}

type familyReport struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

func (h *Health) report() healthReport {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	r := healthReport{CurrentTime: now, Healthy: true, Status: map[string]familyReport{}}
	for f, updated := range h.updated {
		since, waiting := h.pending[f]
		healthy := !waiting || now.Sub(since) < h.cfg.Timeout
		r.Status[f.String()] = familyReport{LastUpdated: updated, Healthy: healthy}
		r.Healthy = r.Healthy && healthy
		if updated.After(r.LastUpdated) {
			r.LastUpdated = updated
		}
	}
	return r
}

func (h *Health) healthz(w http.ResponseWriter, _ *http.Request) {
	report := h.report()
	h.mu.Lock()
	eligible := eligible(h.node)
	h.mu.Unlock()
	report.NodeEligible = &eligible
	h.answer(w, report, report.Healthy && eligible, healthzTotal)
}

func (h *Health) livez(w http.ResponseWriter, _ *http.Request) {
	report := h.report()
	h.answer(w, report, report.Healthy, livezTotal)
}

// answer writes a report. One that says well is of this moment, as it has been since
// lastUpdated was the time of a loop that ran whether or not anything had changed.
func (h *Health) answer(w http.ResponseWriter, report healthReport, well bool, counter *series) {
	code := http.StatusServiceUnavailable
	if well {
		code = http.StatusOK
		report.LastUpdated = time.Now()
	}
	if h.cfg.Metrics != nil {
		h.cfg.Metrics.answered(counter, code)
	}
	body, _ := json.Marshal(report) // times of this century always encode
	writeJSON(w, code, body)
}

func writeJSON(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(body) // a client that has gone does not read it
}
