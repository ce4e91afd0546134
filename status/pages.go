package status

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// pages returns what the metrics server serves.
func (m *Metrics) pages() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", plain("ok"))
	mux.HandleFunc("/proxyMode", plain("userspace"))
	mux.HandleFunc("/configz", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, m.config) })
	series := promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		// One series that is wrong must not cost all others.
		ErrorHandling: promhttp.ContinueOnError,
		ErrorLog:      slog.NewLogLogger(m.cfg.Log.With("page", "/metrics").Handler(), slog.LevelError),
	})
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, r *http.Request) {
		m.passEnds()
		series.ServeHTTP(w, r)
	})
	if m.cfg.Profiling {
		mux.Handle("/debug/pprof", http.RedirectHandler("/debug/pprof/", http.StatusFound))
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// plain returns a page of one word.
func plain(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = io.WriteString(w, text) // a client that has gone does not read it
	}
}
