package source

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/kube-splice/kube-splice/service"
)

// Kubernetes is a source of Services for a node of a cluster: the Services,
// EndpointSlices and the Node object that an API server holds.
//
// It needs the rights to list and watch services, endpointslices.discovery.k8s.io
// and nodes, and to create events.events.k8s.io if there are Events.
type Kubernetes struct {
	// Config says where the API server is and who we are. Without a ContentType, the
	// objects are asked for in protobuf, or else in JSON.
	Config *rest.Config
	// NodeName names the Node object of this node, and is as in Options. Empty: no
	// Node is read.
	NodeName string
	// NodeWait is how long the first Snapshot waits for the Node object and its
	// addresses. Zero: 30 s, as kube-proxy.
	NodeWait time.Duration
	// KnownBalancer and NoExternalIPs are as in Options.
	KnownBalancer func(name string) bool
	NoExternalIPs bool
	// MinInterval is the least time from the end of one call of publish to the next
	// one. Zero: none. A change after a longer quiet is published at once.
	MinInterval time.Duration
	// Events, if not nil, are sent to the API server, with those about faults of Services.
	Events *Events
	// Requests, if not nil, is told of every request to the API server.
	Requests RequestObserver
	// Log takes one line for each fault of an object when it appears, and one when
	// the API server cannot be read and when it can again. What client-go has to say
	// goes there at Debug. Nil: slog.Default().
	Log *slog.Logger
}

// nodeWait is kube-proxy's: a node's proxy may start before its kubelet registered it.
const nodeWait = 30 * time.Second

// Run publishes a Snapshot when Services and EndpointSlices have both been listed,
// if only as empty, and then another one after each change, until ctx ends, and
// returns nil. It calls publish from its own goroutine; while a call lasts, changes
// gather, and the next Snapshot has them all. The cost of a Snapshot depends on
// what changed, not on what there is.
//
// What was published stays in force while the API server is away or refuses: Run
// tries again until ctx ends, after 0.8 s to 1.6 s at first and 30 s to 60 s in the
// end, and finds out what it missed. It returns an error at once if Config is no good.
//
// A connection that died without a word is noticed by HTTP/2 pings within 45 s: 30 s
// of silence and 15 s for the answer (environment: HTTP2_READ_IDLE_TIMEOUT_SECONDS,
// HTTP2_PING_TIMEOUT_SECONDS). Without TLS there is no HTTP/2, and TCP keep-alive
// probes take 165 s: 30 s of silence and nine probes.
func (k *Kubernetes) Run(ctx context.Context, publish func(*service.Snapshot)) error {
	log := k.Log
	if log == nil {
		log = slog.Default()
	}
	known := newCluster()
	api, err := newClient(k.Config, newTroubles(log))
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	defer api.close()
	ctx, cancel := context.WithCancel(withRequests(klog.NewContext(ctx, quietLogger(log)), k.Requests))
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	start := func(r resource, kind object, store cache.ReflectorStore) error {
		source, err := api.listWatch(r)
		if err != nil {
			return fmt.Errorf("connect to the API server: %w", err)
		}
		running.Go(func() { keepUp(ctx, r, source, kind, store) })
		return nil
	}
	if err := start(readServices, &corev1.Service{}, &known.services); err != nil {
		return err
	}
	if err := start(readSlicesOfAll, &discoveryv1.EndpointSlice{}, &known.slices); err != nil {
		return err
	}
	if k.NodeName != "" {
		if err := start(readNode(k.NodeName), &corev1.Node{}, &known.nodes); err != nil {
			return err
		}
	}
	if k.Events != nil {
		sender, err := newEventSender(api, known, log)
		if err != nil {
			return fmt.Errorf("connect to the API server: %w", err)
		}
		running.Go(func() { sender.run(ctx, k.Events) })
	}
	k.follow(ctx, known, log, publish)
	return nil
}

// keepUp keeps the store as the API server's state until ctx ends. The backoff
// is client-go's own: a whole cluster may do this at the same time.
func keepUp(ctx context.Context, r resource, source *cache.ListWatch, kind object, store cache.ReflectorStore) {
	backoff := wait.Backoff{Duration: 800 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 38, Cap: 30 * time.Second}
	reflector := cache.NewReflectorWithOptions(source, kind, store, cache.ReflectorOptions{Name: r.String(), Backoff: &backoff})
	again := func(ctx context.Context) (bool, error) {
		// The error was said when the request that caused it came back.
		_ = reflector.ListAndWatchWithContext(ctx)
		return false, nil
	}
	_ = backoff.DelayWithReset(clock.RealClock{}, 2*time.Minute).Until(ctx, true, true, again)
}

// follow publishes what is known as it changes, until ctx ends.
func (k *Kubernetes) follow(ctx context.Context, known *cluster, log *slog.Logger, publish func(*service.Snapshot)) {
	if !k.awaitFirst(ctx, known, log) {
		return
	}
	b := newBuilder(Options{NodeName: k.NodeName, KnownBalancer: k.KnownBalancer, NoExternalIPs: k.NoExternalIPs})
	var last *service.Snapshot
	for {
		now := known.take(k.NodeName)
		next, fresh := b.apply(now.services, now.node)
		for _, n := range fresh {
			log.Warn(n.Text, "object", n.Object)
			k.Events.notice(n)
		}
		if next != last {
			last = next
			publish(next.Triggered(now.triggers))
			if !pause(ctx, k.MinInterval) {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-known.changed:
		}
	}
}

// awaitFirst returns true when there is enough to publish, and false if ctx ended
// first.
func (k *Kubernetes) awaitFirst(ctx context.Context, known *cluster, log *slog.Logger) bool {
	patience := k.NodeWait
	if patience == 0 {
		patience = nodeWait
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	waitsForNode := k.NodeName != ""
	for {
		if listed := known.listed(); listed && !waitsForNode {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-late.C:
			if !known.listed() {
				log.Warn(fmt.Sprintf("Services and EndpointSlices are not all listed by the API server after %v; nothing is changed until they are", patience))
			}
			if waitsForNode {
				log.Warn(fmt.Sprintf("no Node %q with addresses in the API server after %v; going on without it", k.NodeName, patience))
			}
			waitsForNode = false
		case <-known.changed:
			waitsForNode = waitsForNode && !known.hasNode(k.NodeName)
		}
	}
}

// pause returns after d, or false as soon as ctx ends.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
