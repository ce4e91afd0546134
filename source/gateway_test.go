package source_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-splice/kube-splice/source"
)

// gateway stands in front of an API server and may answer in its place.
type gateway struct {
	api    *apiServer
	server *httptest.Server
	answer atomic.Pointer[http.HandlerFunc] // nil: the API server answers
	asked  chan struct{}                    // one value a request
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	g := &gateway{api: newAPIServer(t, false), asked: make(chan struct{}, 10000)}
	g.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.asked <- struct{}{}
		if answer := g.answer.Load(); answer != nil {
			(*answer)(w, r)
			return
		}
		g.api.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		g.server.CloseClientConnections()
		g.server.Close()
	})
	return g
}

// answers makes the gateway answer everything so, and ends what it passes on.
func (g *gateway) answers(code int, header, value, body string) {
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set(header, value)
		w.WriteHeader(code)
		_, _ = fmt.Fprint(w, body)
	})
	g.answer.Store(&answer)
	g.server.CloseClientConnections()
}

func (g *gateway) config() *rest.Config {
	return &rest.Config{Host: g.server.URL, QPS: 1000, Burst: 1000}
}

func TestAnswersOfSomethingElseThanAnAPIServerDeleteNothing(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"nothing in it":   `{}`,
		"a message":       `{"message":"down for maintenance"}`,
		"an untitled one": `{"items":[]}`,
		"another list":    `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t)
			g.api.put(newService("web", "10.96.0.1"), newSlice("web", "web-a", []string{"10.244.1.1"}))
			f := watchAPI(t, source.Kubernetes{Config: g.config()})
			f.first(t, "web=10.244.1.1")
			g.answers(http.StatusOK, "Via", "gateway", body)
			for said := false; !said; {
				select {
				case line := <-f.log.lines:
					said = strings.Contains(line, "is this an API server?")
				case <-f.snapshots:
					t.Fatal("a Snapshot was made of it")
				case <-time.After(20 * time.Second):
					t.Fatal("it is not said")
				}
			}
			f.quiet(t)
			g.answer.Store(nil)
			g.api.put(newSlice("web", "web-a", []string{"10.244.1.2"}))
			f.first(t, "web=10.244.1.2")
		})
	}
}

func TestAPIServerIsAskedAgainHoweverLongAnAnswerWouldPutItOff(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.answers(http.StatusServiceUnavailable, "Retry-After", "86400", "")
	g.api.put(newService("web", "10.96.0.1"))
	f := watchAPI(t, source.Kubernetes{Config: g.config()})
	<-g.asked
	g.answer.Store(nil)
	f.first(t, "web=")
}

func TestAnswerThatAllIsGoneIsNotAskedForInHaste(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.answers(http.StatusGone, "Via", "gateway", "")
	watchAPI(t, source.Kubernetes{Config: g.config()})
	<-g.asked
	time.Sleep(3 * time.Second)
	if n := len(g.asked); n > 30 {
		t.Errorf("asked %d times in 3 s", n)
	}
}

func TestListThatDoesNotComeIsSaid(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	release := g.api.hold("services")
	g.api.put(newService("web", "10.96.0.1"))
	f := watchAPI(t, source.Kubernetes{Config: g.config(), NodeWait: 300 * time.Millisecond})
	f.log.wait(t, "level=WARN", "not all listed")
	release()
	f.first(t, "web=")
}

func TestFaultsOfOneObjectAreSaidInFewAndShortLines(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t, false)
	long := newService("long", "10.96.0.1", func(s *corev1.Service) {
		s.Annotations = map[string]string{"kube-splice.io/balancer": strings.Repeat("x\n", 80000)}
	})
	many := newSlice("long", "many", nil, func(s *discoveryv1.EndpointSlice) {
		for i := range 900 {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("127.0.%d.%d", i/256, i%256)}})
		}
	})
	api.put(long, many)
	f := watchAPI(t, source.Kubernetes{Config: api.config()})
	f.first(t, "long=")
	lines := f.log.rest()
	if n := len(lines); n < 2 || n > 21 {
		t.Errorf("%d lines are said", n)
	}
	for _, line := range lines {
		if len(line) > 3000 {
			t.Errorf("a line of %d bytes: %.100s…", len(line), line)
		}
	}
	if last := lines[len(lines)-1]; !strings.Contains(last, "more faults") {
		t.Errorf("that there are more is not said, but %s", last)
	}
}
