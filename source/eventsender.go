package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const (
	// eventLife is how long an API server keeps an Event.
	eventLife = time.Hour
	// eventsPerSecond and eventBurst bound what all nodes together can do to an API
	// server over a fault that each of them sees.
	eventsPerSecond, eventBurst = 1, 25
	// eventPatience bounds one request.
	eventPatience = 10 * time.Second
	// lingering is for what happened just before the end, such as its cause.
	lingering = time.Second
)

// eventSender sends Events to the API server as objects of events.k8s.io/v1. client-go
// has a recorder of these, but with the clients of every API group behind it.
type eventSender struct {
	api     *rest.RESTClient
	known   *cluster
	log     *slog.Logger
	recent  map[datedEvent]time.Time // when what has no time here was sent
	refused map[metav1.StatusReason]bool
}

func newEventSender(c *client, known *cluster, log *slog.Logger) (*eventSender, error) {
	config := rest.CopyConfig(c.config)
	config.GroupVersion = &eventsv1.SchemeGroupVersion
	config.APIPath = "/apis"
	config.NegotiatedSerializer = c.codecs.WithoutConversion()
	config.RateLimiter, config.QPS, config.Burst = nil, eventsPerSecond, eventBurst
	api, err := rest.RESTClientForConfigAndClient(config, &http.Client{Transport: c.transport})
	if err != nil {
		return nil, err
	}
	return &eventSender{
		api: api, known: known, log: log,
		recent: map[datedEvent]time.Time{}, refused: map[metav1.StatusReason]bool{},
	}, nil
}

// run sends what comes until ctx ends, and then what is there, for a second at most.
func (s *eventSender) run(ctx context.Context, events *Events) {
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(lingering, cancel) })
	defer stop()
	lost := events.lost
	for {
		select {
		case e := <-events.queue:
			s.send(ctx, sending, e)
			continue
		case <-lost:
			lost = nil
			s.log.Warn("too many Events, or the API server takes none; some are lost, but all they tell is in this log")
			continue
		case <-ctx.Done():
		}
		select {
		case e := <-events.queue:
			s.send(ctx, sending, e)
		default:
			return
		}
	}
}

// send sends an Event unless that was done lately. While the API server is away it
// tries again, until ctx ends.
func (s *eventSender) send(ctx, sending context.Context, e datedEvent) {
	if e.about.Kind == "Service" {
		e.about.UID = s.known.serviceUID(key{e.about.Namespace, e.about.Name})
	}
	if s.wasSent(e) {
		return
	}
	object := eventObject(e)
	for wait := time.Second; time.Since(e.at) < eventLife; wait = min(2*wait, time.Minute) {
		err := s.create(sending, object)
		if err == nil || s.answered(err) || !pause(ctx, wait) {
			return
		}
	}
}

// wasSent reports whether an equal Event was sent in the life of one, and notes it.
func (s *eventSender) wasSent(e datedEvent) bool {
	now := time.Now()
	for sent, at := range s.recent {
		if now.Sub(at) >= eventLife {
			delete(s.recent, sent)
		}
	}
	e.at = time.Time{}
	_, was := s.recent[e]
	if !was {
		s.recent[e] = now
	}
	return was
}

func (s *eventSender) create(ctx context.Context, object *eventsv1.Event) error {
	ctx, cancel := context.WithTimeout(ctx, eventPatience)
	defer cancel()
	return s.api.Post().Namespace(object.Namespace).Resource("events").Body(object).Do(ctx).Error()
}

// answered reports whether an error is the API server's last word on an Event, and
// says the first of its kind.
func (s *eventSender) answered(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code >= http.StatusInternalServerError ||
		apierrors.IsTooManyRequests(err) || apierrors.IsUnauthorized(err) { // credentials may be renewed
		return false
	}
	expected := apierrors.IsAlreadyExists(err) || // by a request whose answer was lost
		apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
	reason := apierrors.ReasonForError(err)
	if expected || s.refused[reason] {
		return true
	}
	s.refused[reason] = true
	if apierrors.IsForbidden(err) {
		s.log.Warn("the API server forbids writing Events; let a ClusterRole of this user create events.events.k8s.io", "error", err)
	} else {
		s.log.Warn("the API server refuses an Event", "error", err)
	}
	return true
}

// eventObject returns an Event as the API has it.
func eventObject(e datedEvent) *eventsv1.Event {
	kind, namespace := corev1.EventTypeNormal, e.about.Namespace
	if e.Warning {
		kind = corev1.EventTypeWarning
	}
	if namespace == "" {
		namespace = metav1.NamespaceDefault // where those about Nodes are
	}
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%x", e.about.Name, e.at.UnixNano())},
		EventTime:           metav1.NewMicroTime(e.at),
		ReportingController: reporter,
		ReportingInstance:   cut(reporter+"-"+e.node, 128),
		Type:                kind, Reason: e.Reason, Action: e.Action, Note: cut(e.Note, 1024), Regarding: e.about,
	}
}

// cut returns the first bytes of a text, at most n, and no part of a character.
func cut(text string, n int) string {
	return strings.ToValidUTF8(text[:min(n, len(text))], "")
}
