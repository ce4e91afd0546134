package source_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

// eventBook takes the Events that are created.
type eventBook struct{ created chan *eventsv1.Event }

func newEventBook() eventBook { return eventBook{make(chan *eventsv1.Event, 1000)} }

func (b eventBook) take(decoder runtime.Decoder, w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	decoded, _, err := decoder.Decode(body, nil, nil)
	event, is := decoded.(*eventsv1.Event)
	if err != nil || !is || !strings.HasSuffix(r.URL.Path, "/apis/events.k8s.io/v1/namespaces/"+event.Namespace+"/events") {
		http.Error(w, fmt.Sprint("not an Event at its place: ", r.URL.Path, err), http.StatusUnprocessableEntity)
		return
	}
	w.WriteHeader(http.StatusCreated)
	b.created <- event
}

// next returns the next Event that is created.
func (b eventBook) next(t *testing.T) *eventsv1.Event {
	t.Helper()
	select {
	case event := <-b.created:
		return event
	case <-time.After(20 * time.Second):
		t.Fatal("no Event is created")
		return nil
	}
}

// none expects no Event for a while.
func (b eventBook) none(t *testing.T) {
	t.Helper()
	select {
	case event := <-b.created:
		t.Errorf("unexpected Event: %+v", event)
	case <-time.After(500 * time.Millisecond):
	}
}

// verbOf is what a request asks for, as an RBAC rule names it.
func verbOf(r *http.Request) string {
	switch {
	case r.Method == http.MethodPost:
		return "create"
	case r.URL.Query().Get("watch") != "":
		return "watch"
	}
	return "list"
}

func withUID(uid string) func(*corev1.Service) {
	return func(svc *corev1.Service) { svc.UID = types.UID(uid) }
}

func TestEventsAreWrittenAsKubeProxyWritesThem(t *testing.T) {
	t.Parallel()
	for name, jsonOnly := range map[string]bool{"protobuf": false, "JSON": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := newAPIServer(t, false)
			api.jsonOnly = jsonOnly
			api.put(newService("web", "10.96.0.1", withUID("uid-web")), newNode("192.0.2.1"))
			events := source.NewEvents("n1")
			began := time.Now()
			events.OnNode(source.Event{Reason: "Starting", Action: "StartKubeProxy"})
			f := watchAPI(t, source.Kubernetes{Config: api.config(), NodeName: "n1", Events: events})
			node := api.events.next(t)
			wantEvent(t, node, "default", corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "n1"}, "Normal Starting StartKubeProxy ")
			if at := node.EventTime.Time; at.Before(began.Truncate(time.Microsecond)) || at.After(time.Now()) {
				t.Errorf("it is dated %v", at)
			}
			f.first(t, "web=")
			events.OnService("default", "web", source.Event{Warning: true, Reason: "PortConflict", Action: "Listen", Note: strings.Repeat("ä", 600)})
			event := api.events.next(t)
			wantEvent(t, event, "default", corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: "default", Name: "web", UID: "uid-web"},
				"Warning PortConflict Listen "+strings.Repeat("ä", 512))
			events.OnService("other", "unknown", source.Event{Reason: "R", Action: "A"})
			wantEvent(t, api.events.next(t), "other", corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: "other", Name: "unknown"}, "Normal R A ")
			if lines := f.log.rest(); len(lines) > 0 {
				t.Errorf("log: %q", lines)
			}
		})
	}
}

func wantEvent(t *testing.T, e *eventsv1.Event, namespace string, about corev1.ObjectReference, text string) {
	t.Helper()
	if e.Namespace != namespace || !strings.HasPrefix(e.Name, about.Name+".") || e.Regarding != about {
		t.Errorf("Event %s/%s about %+v, want one in %s about %+v", e.Namespace, e.Name, e.Regarding, namespace, about)
	}
	if got := strings.Join([]string{e.Type, e.Reason, e.Action, e.Note}, " "); got != text {
		t.Errorf("Event %q, want %q", got, text)
	}
	if e.ReportingController != "kube-splice" || e.ReportingInstance != "kube-splice-n1" {
		t.Errorf("reported by %s, %s", e.ReportingController, e.ReportingInstance)
	}
}

func TestFaultsOfServicesThatTheirOwnersCanMendAreEventsOnce(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t, false)
	onSCTP := func(svc *corev1.Service) { svc.Spec.Ports[0].Protocol = corev1.ProtocolSCTP }
	external := func(svc *corev1.Service) { svc.Spec.ExternalIPs = []string{"192.0.2.7"} }
	api.put(newService("a", "10.96.0.1", external), newService("sctp", "10.96.0.3", onSCTP))
	f := watchAPI(t, source.Kubernetes{Config: api.config(), Events: source.NewEvents("n1")})
	f.first(t, "a=")
	if e := api.events.next(t); e.Regarding.Name != "sctp" || e.Type != "Warning" || e.Reason != "UnsupportedProtocol" || !strings.Contains(e.Note, "SCTP") {
		t.Errorf("Event %+v, want one that SCTP is not served", e)
	}
	api.put(newService("b", "10.96.0.2", external))
	f.first(t, "a= b=")
	if e := api.events.next(t); e.Regarding.Name != "b" || e.Type != "Warning" || e.Reason != "PortConflict" || !strings.Contains(e.Note, "192.0.2.7:80") {
		t.Errorf("Event %+v, want one that b loses an address to a", e)
	}
	f.log.rest()
	api.put(newService("b", "10.96.0.4"))
	f.first(t, "a= b=")
	api.put(newService("b", "10.96.0.4", external))
	f.log.wait(t, "192.0.2.7:80") // it is said again, but is no Event again
	api.events.none(t)
}

func TestMissingRightToWriteEventsIsSaidOnceAndCostsNothing(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t, false)
	book := make(requestBook, 1000)
	api.put(newService("web", "10.96.0.1"))
	api.forbid("create events", true)
	events := source.NewEvents("n1")
	f := watchAPI(t, source.Kubernetes{Config: api.config(), Events: events, Requests: book})
	f.first(t, "web=")
	refused := "403 POST " + api.server.Listener.Addr().String()
	for i := range 3 {
		events.OnNode(source.Event{Reason: fmt.Sprint("R", i), Action: "A"})
		book.await(t, refused)
	}
	f.log.wait(t, "level=WARN", "forbids writing Events", "events.events.k8s.io")
	api.put(newSlice("web", "web-1", []string{"10.244.1.1"}))
	f.first(t, "web=10.244.1.1")
	api.forbid("create events", false)
	events.OnNode(source.Event{Reason: "Later", Action: "A"})
	if e := api.events.next(t); e.Reason != "Later" {
		t.Errorf("Event %s, want the one of later", e.Reason)
	}
	for len(book) > 0 {
		if <-book == refused {
			t.Error("a refused Event is tried again")
		}
	}
	if lines := f.log.rest(); len(lines) > 0 {
		t.Errorf("log: %q", lines)
	}
}

func TestEventsWaitForAnAPIServerThatIsAway(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t, false)
	api.put(newService("web", "10.96.0.1"))
	events, book := source.NewEvents("n1"), make(requestBook, 1000)
	f := watchAPI(t, source.Kubernetes{Config: api.config(), Events: events, Requests: book})
	f.first(t, "web=")
	api.goAway()
	f.log.wait(t, "cannot reach the API server")
	for _, reason := range []string{"First", "Second"} {
		events.OnNode(source.Event{Reason: reason, Action: "A"})
	}
	book.await(t, "<error> POST "+api.server.Listener.Addr().String())
	api.comeBack(t)
	for _, reason := range []string{"First", "Second"} {
		if e := api.events.next(t); e.Reason != reason {
			t.Errorf("Event %s, want %s", e.Reason, reason)
		}
	}
}

func TestEventsThatNobodySendsAreLostWithoutWaiting(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t, false)
	api.put(newService("web", "10.96.0.1"))
	events := source.NewEvents("n1")
	for i := range 1000 {
		events.OnNode(source.Event{Reason: fmt.Sprint("R", i), Action: "A"})
	}
	f := watchAPI(t, source.Kubernetes{Config: api.config(), Events: events})
	f.first(t, "web=")
	f.log.wait(t, "level=WARN", "some are lost")
	// And it ends within a second or so, though most of 256 still wait.
}

func TestLastWordsAreSentBeforeTheEnd(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t, false)
	api.put(newService("web", "10.96.0.1"))
	events := source.NewEvents("n1")
	ctx, cancel := context.WithCancel(t.Context())
	k := source.Kubernetes{Config: api.config(), Events: events, Log: newLogbook().logger()}
	if err := k.Run(ctx, func(*service.Snapshot) {
		events.OnNode(source.Event{Warning: true, Reason: "FailedToStartMetricServer", Action: "StartKubeProxy"})
		cancel()
	}); err != nil {
		t.Fatal(err)
	}
	if e := api.events.next(t); e.Reason != "FailedToStartMetricServer" {
		t.Errorf("Event %s", e.Reason)
	}
}
