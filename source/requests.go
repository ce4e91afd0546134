package source

import (
	"context"
	"net/url"
	"time"

	"k8s.io/client-go/tools/metrics"
)

// RequestObserver is told of requests to the API server, as client-go counts them. It
// is called by many goroutines and must not block.
type RequestObserver interface {
	// Requested says that a request to host was answered with a code of HTTP, or not
	// at all ("<error>"). A watch is a request that is answered when it begins.
	Requested(code, method, host string)
	// RequestTook says how long it was until the answer to a request that is no watch.
	RequestTook(verb, host string, took time.Duration)
}

// requestsKey is under which a context holds the RequestObserver of its requests.
// client-go has one hook for the whole process; the context tells whom to tell.
type requestsKey struct{}

// withRequests returns a context whose requests to the API server o is told of.
func withRequests(ctx context.Context, o RequestObserver) context.Context {
	if o == nil {
		return ctx
	}
	return context.WithValue(ctx, requestsKey{}, o)
}

// init hangs the hook in: client-go reads it without a lock, so it has to be there
// before the first request.
func init() {
	metrics.Register(metrics.RegisterOpts{RequestResult: requestHook{}, RequestLatency: requestHook{}})
}

// requestHook passes on what client-go counts.
type requestHook struct{}

// Increment counts an answer.
func (requestHook) Increment(ctx context.Context, code, method, host string) {
	if o, wanted := ctx.Value(requestsKey{}).(RequestObserver); wanted {
		o.Requested(code, method, host)
	}
}

// Observe takes the time of a request.
func (requestHook) Observe(ctx context.Context, verb string, u url.URL, latency time.Duration) {
	if o, wanted := ctx.Value(requestsKey{}).(RequestObserver); wanted {
		o.RequestTook(verb, u.Host, latency)
	}
}
