package status_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kube-splice/kube-splice/status"
)

// scrape reads /metrics as Prometheus would.
func scrape(t testing.TB, handler http.Handler) map[string]*dto.MetricFamily {
	t.Helper()
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("/metrics says %d: %s", w.Code, w.Body)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	parsed, err := parser.TextToMetricFamilies(w.Body)
	check(t, err)
	return parsed
}

// flat returns the series of a scrape as lines of the text format; a histogram is
// its count.
func flat(families map[string]*dto.MetricFamily) map[string]float64 {
	values := map[string]float64{}
	for name, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			key := name
			if len(labels) > 0 {
				key += "{" + strings.Join(labels, ",") + "}"
			}
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				values[key] = m.Counter.GetValue()
			case dto.MetricType_GAUGE:
				values[key] = m.Gauge.GetValue()
			case dto.MetricType_HISTOGRAM:
				values[key] = float64(m.Histogram.GetSampleCount())
			}
		}
	}
	return values
}

// wantSeries scrapes and looks for one series, its labels in the order of their names.
func wantSeries(t testing.TB, m *status.Metrics, line string, want float64) {
	t.Helper()
	values := flat(scrape(t, m))
	got, there := values[line]
	if !there {
		t.Fatalf("no series %s among\n%s", line, strings.Join(ours(values), "\n"))
	}
	if got != want {
		t.Errorf("%s is %v, want %v", line, got, want)
	}
}

// ours returns the series that are not of the runtime or the process.
func ours(values map[string]float64) []string {
	var lines []string
	for _, line := range slices.Sorted(maps.Keys(values)) {
		if strings.HasPrefix(line, "kube") {
			lines = append(lines, line)
		}
	}
	return lines
}
