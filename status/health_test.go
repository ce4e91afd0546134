package status_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/status"
)

// ask asks without a network, so that the clock of the test stands still.
func ask(h *status.Health, path string) answer {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return answer{w.Code, w.Header(), w.Body.String()}
}

func wantHealth(t *testing.T, h *status.Health, path string, code int, body string) {
	t.Helper()
	wantAnswer(t, ask(h, path), code, "application/json", body)
}

func stamp(at time.Time) string { return at.Format(time.RFC3339Nano) }

var known = service.Node{Known: true}

func TestHealthBeforeTheFirstUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := status.NewHealth(status.HealthConfig{})
		now := stamp(time.Now())
		wantHealth(t, h, "/healthz", 503, `{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"`+now+`","nodeEligible":false,"healthy":true}`)
		wantHealth(t, h, "/livez", 200, `{"lastUpdated":"`+now+`","currentTime":"`+now+`","healthy":true}`)

		h.SyncNode(known)
		h.QueuedUpdate(service.IPv4)
		time.Sleep(time.Hour) // it is starting, however long that takes
		now = stamp(time.Now())
		wantHealth(t, h, "/healthz", 200, `{"lastUpdated":"`+now+`","currentTime":"`+now+`","nodeEligible":true,"healthy":true}`)
	})
}

func TestHealthOfBothFamiliesUpdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := status.NewHealth(status.HealthConfig{})
		h.SyncNode(known)
		h.Updated(service.IPv6)
		first := stamp(time.Now())
		time.Sleep(1500 * time.Millisecond)
		h.Updated(service.IPv4)
		second := stamp(time.Now())
		time.Sleep(time.Hour)
		now := stamp(time.Now())
		families := `"status":{"IPv4":{"lastUpdated":"` + second + `","healthy":true},"IPv6":{"lastUpdated":"` + first + `","healthy":true}}`
		wantHealth(t, h, "/healthz", 200, `{"lastUpdated":"`+now+`","currentTime":"`+now+`","nodeEligible":true,"healthy":true,`+families+`}`)
		wantHealth(t, h, "/livez", 200, `{"lastUpdated":"`+now+`","currentTime":"`+now+`","healthy":true,`+families+`}`)
	})
}

func TestUpdateThatIsOverdueMakesItsFamilyUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := status.NewHealth(status.HealthConfig{Timeout: 20 * time.Second})
		h.SyncNode(known)
		h.Updated(service.IPv4)
		h.Updated(service.IPv6)
		updated := stamp(time.Now())
		time.Sleep(time.Second)

		h.QueuedUpdate(service.IPv6)
		time.Sleep(10 * time.Second)
		h.QueuedUpdate(service.IPv6) // the first one is still waiting
		time.Sleep(10*time.Second - time.Nanosecond)
		if !h.Healthy() || ask(h, "/livez").code != 200 {
			t.Error("unhealthy before the time is up")
		}
		time.Sleep(time.Nanosecond)
		now := stamp(time.Now())
		families := `"status":{"IPv4":{"lastUpdated":"` + updated + `","healthy":true},"IPv6":{"lastUpdated":"` + updated + `","healthy":false}}`
		wantHealth(t, h, "/healthz", 503, `{"lastUpdated":"`+updated+`","currentTime":"`+now+`","nodeEligible":true,"healthy":false,`+families+`}`)
		wantHealth(t, h, "/livez", 503, `{"lastUpdated":"`+updated+`","currentTime":"`+now+`","healthy":false,`+families+`}`)
		if h.Healthy() {
			t.Error("Healthy is true while /livez says 503")
		}

		h.Updated(service.IPv4) // helps the other family nothing
		if h.Healthy() {
			t.Error("healthy after an update of the other family")
		}
		h.Updated(service.IPv6)
		if ask(h, "/healthz").code != 200 || ask(h, "/livez").code != 200 {
			t.Error("unhealthy after the update came through")
		}
	})
}

func TestTimeoutIsAMinuteIfNotSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := status.NewHealth(status.HealthConfig{})
		h.Updated(service.IPv4)
		h.QueuedUpdate(service.IPv4)
		time.Sleep(time.Minute - time.Nanosecond)
		before := h.Healthy()
		time.Sleep(time.Nanosecond)
		if !before || h.Healthy() {
			t.Errorf("healthy before a minute: %v, after it: %v", before, h.Healthy())
		}
	})
}

func TestNodeThatIsToGoGetsNoTrafficButIsAlive(t *testing.T) {
	for name, node := range map[string]service.Node{
		"unknown":  {},
		"deleting": {Known: true, Deleting: true},
		"tainted":  {Known: true, Tainted: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := status.NewHealth(status.HealthConfig{})
				h.SyncNode(known)
				h.SyncNode(node)
				h.Updated(service.IPv4)
				now := stamp(time.Now())
				wantHealth(t, h, "/healthz", 503, `{"lastUpdated":"`+now+`","currentTime":"`+now+`","nodeEligible":false,"healthy":true,"status":{"IPv4":{"lastUpdated":"`+now+`","healthy":true}}}`)
				if code := ask(h, "/livez").code; code != 200 {
					t.Errorf("/livez says %d, want 200", code)
				}
				if !h.Healthy() {
					t.Error("the node has a say in Healthy")
				}
				h.SyncNode(known)
				if code := ask(h, "/healthz").code; code != 200 {
					t.Errorf("/healthz says %d when the node stays after all, want 200", code)
				}
			})
		})
	}
}

func TestHealthOverHTTP(t *testing.T) {
	h := status.NewHealth(status.HealthConfig{})
	h.SyncNode(known)
	h.Updated(service.IPv4)
	url := serve(t, h)
	got := get(t, url+"/healthz")
	wantAnswer(t, got, 200, "application/json", got.body)
	var body struct {
		LastUpdated, CurrentTime time.Time
		NodeEligible, Healthy    bool
	}
	check(t, json.Unmarshal([]byte(got.body), &body))
	if age := time.Since(body.CurrentTime); age < 0 || age > time.Minute || !body.NodeEligible || !body.Healthy {
		t.Errorf("%s is not a healthy proxy of this moment", got.body)
	}
	if got := get(t, url+"/livez"); got.code != 200 || strings.Contains(got.body, "nodeEligible") {
		t.Errorf("/livez: %d %s, want 200 and no word of the node", got.code, got.body)
	}
	if got := get(t, url+"/"); got.code != 404 {
		t.Errorf("/ is answered with %d, want 404", got.code)
	}
}

func TestAnswersAreCountedByCode(t *testing.T) {
	m := newMetrics(t, status.MetricsConfig{})
	h := status.NewHealth(status.HealthConfig{Metrics: m})
	wantSeries(t, m, `kubeproxy_proxy_healthz_total{code="200"}`, 0) // there before the first one
	for range 3 {
		ask(h, "/healthz")
	}
	h.SyncNode(known)
	for range 2 {
		ask(h, "/healthz")
	}
	ask(h, "/livez")
	for line, n := range map[string]float64{
		`kubeproxy_proxy_healthz_total{code="200"}`: 2, `kubeproxy_proxy_healthz_total{code="503"}`: 3,
		`kubeproxy_proxy_livez_total{code="200"}`: 1, `kubeproxy_proxy_livez_total{code="503"}`: 0,
	} {
		wantSeries(t, m, line, n)
	}
}

func ExampleHealth() {
	h := status.NewHealth(status.HealthConfig{Timeout: 2 * 30 * time.Second})
	h.SyncNode(service.Node{Known: true})
	h.QueuedUpdate(service.IPv4) // a change has come
	h.Updated(service.IPv4)      // it is in force
	fmt.Println(h.Healthy())
	// Output: true
}
