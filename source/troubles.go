package source

import (
	"context"
	"errors"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// troubles says what keeps the API server from being read: one line when it begins
// or changes its kind, one when all is well again.
type troubles struct {
	log *slog.Logger
	mu  sync.Mutex
	now map[string]trouble // by resource
}

// trouble is why a resource cannot be read.
type trouble struct {
	verb  string
	cause metav1.StatusReason // unreachable, or what the API server answered
}

// unreachable is the cause of a request without an answer.
const unreachable metav1.StatusReason = "unreachable"

func newTroubles(log *slog.Logger) *troubles {
	return &troubles{log: log, now: map[string]trouble{}}
}

// observed tells troubles what becomes of each request on its way. A reflector
// hides some of it: it repeats a refused watch by itself, and takes a connection
// that timed out for a watch without events.
type observed struct {
	http.RoundTripper
	resource resource
	troubles *troubles
}

// RoundTrip is that of the transport observed.
func (o observed) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := o.RoundTripper.RoundTrip(request)
	verb := "list"
	if request.URL.Query().Get("watch") != "" {
		verb = "watch"
	}
	switch {
	case err == nil && asksForPatience(response):
		response.Header.Set("Retry-After", strconv.Itoa(int(longestPatience.Seconds())))
	case err != nil && request.Context().Err() == nil:
		o.troubles.failed(verb, o.resource, unreachable, err)
	case err == nil && response.StatusCode == http.StatusOK && verb == "watch" && isAPI(response):
		o.troubles.worked(verb, o.resource)
	}
	return response, err
}

// longestPatience bounds the time for which a request is put off because the answer has
// asked for it (Retry-After, RFC 9110). Some gateways ask for hours while a server is
// away, and client-go waits without a word.
const longestPatience = 10 * time.Second

// asksForPatience reports whether an answer asks for more than that.
func asksForPatience(response *http.Response) bool {
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	return err == nil && seconds > int(longestPatience.Seconds())
}

// WrappedRoundTripper lets client-go find the transport observed.
func (o observed) WrappedRoundTripper() http.RoundTripper { return o.RoundTripper }

// isAPI reports whether an API server answered, not something else at its address.
func isAPI(response *http.Response) bool {
	kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	return err == nil && (kind == runtime.ContentTypeJSON || strings.HasPrefix(kind, protobuf))
}

// answered takes the outcome of a request that observed let pass.
func (t *troubles) answered(ctx context.Context, verb string, r resource, err error) {
	var sent *url.Error
	switch {
	case ctx.Err() != nil || errors.As(err, &sent):
	case err == nil && verb == "list":
		t.worked(verb, r)
	case err != nil:
		t.failed(verb, r, apierrors.ReasonForError(err), err)
	}
}

func (t *troubles) failed(verb string, r resource, cause metav1.StatusReason, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.now[r.name]
	said := before.verb != "" && before.cause == cause
	for _, other := range t.now {
		// That the API server is away is no news for the next resource.
		said = said || cause == unreachable && other.cause == cause
	}
	t.now[r.name] = trouble{verb, cause}
	if said {
		return
	}
	about := []any{"verb", verb, "resource", r.String(), "error", err}
	switch cause {
	case unreachable:
		t.log.Warn("cannot reach the API server; what is known of it stays in force", about...)
	case metav1.StatusReasonForbidden:
		t.log.Warn("the API server forbids reading; let a ClusterRole of this user list and watch the resource", about...)
	default:
		t.log.Warn("cannot read from the API server; what is known of it stays in force", about...)
	}
}

// worked notes that a verb succeeded. Being able to list does not mend a watch that
// was answered with an error; a watch mends all.
func (t *troubles) worked(verb string, r resource) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, had := t.now[r.name]
	if !had || verb == "list" && before.verb == "watch" && before.cause != unreachable {
		return
	}
	delete(t.now, r.name)
	if len(t.now) == 0 {
		t.log.Info("reading from the API server again")
	}
}
