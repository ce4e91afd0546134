package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/endpoint"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
	"k8s.io/kubernetes/pkg/controller/endpointslicemirroring"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
)

// As kube-controller-manager has them by default.
const (
	workers           = 5
	endpointsPerSlice = 100
	mirroredPerSubset = 1000
	namespaceResync   = 5 * time.Minute
	collectorSync     = 30 * time.Second
)

// syncTimeout bounds the first listing of all objects: 20 ms with an empty store.
const syncTimeout = time.Minute

// controllers are the running controllers.
type controllers struct {
	informers informers.SharedInformerFactory
	metadata  metadatainformer.SharedInformerFactory
	collector *garbagecollector.GarbageCollector
	stop      context.CancelFunc
	running   sync.WaitGroup
}

// startControllers runs the controllers with admin's rights. They may not have
// seen every object when this returns. The caller closes them.
func startControllers(ctx context.Context, admin *rest.Config, endpointBatch time.Duration) (*controllers, error) {
	client, err := kubernetes.NewForConfig(admin)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	objects, err := metadata.NewForConfig(admin)
	if err != nil {
		return nil, fmt.Errorf("make a metadata client: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	c := &controllers{
		informers: informers.NewSharedInformerFactory(client, 0),
		metadata:  metadatainformer.NewSharedInformerFactory(objects, 0),
		stop:      stop,
	}
	informersStarted := make(chan struct{})
	loops := c.endpointControllers(ctx, client, endpointBatch)
	loops = append(loops, c.namespaceController(ctx, client, objects))
	collect, err := c.garbageCollector(ctx, client, objects, informersStarted)
	if err != nil {
		stop()
		return nil, err
	}
	loops = append(loops, collect...)

	c.informers.Start(ctx.Done())
	c.metadata.Start(ctx.Done())
	close(informersStarted)
	for _, loop := range loops {
		c.running.Go(func() { loop(ctx) })
	}
	return c, nil
}

// endpointControllers returns the loops of the three controllers that write
// EndpointSlices and Endpoints.
func (c *controllers) endpointControllers(ctx context.Context, client kubernetes.Interface, batch time.Duration) []func(context.Context) {
	core, slices := c.informers.Core().V1(), c.informers.Discovery().V1().EndpointSlices()
	fromPods := endpointslice.NewController(ctx, core.Pods(), core.Services(), core.Nodes(), slices, endpointsPerSlice, client, batch)
	legacy := endpoint.NewEndpointController(ctx, core.Pods(), core.Services(), core.Endpoints(), client, batch)
	mirrored := endpointslicemirroring.NewController(ctx, core.Endpoints(), slices, core.Services(), mirroredPerSubset, client, batch)
	return []func(context.Context){
		func(ctx context.Context) { fromPods.Run(ctx, workers) },
		func(ctx context.Context) { legacy.Run(ctx, workers) },
		func(ctx context.Context) { mirrored.Run(ctx, workers) },
	}
}

// namespaceController returns the loop that empties namespaces being deleted.
func (c *controllers) namespaceController(ctx context.Context, client kubernetes.Interface, objects metadata.Interface) func(context.Context) {
	controller := namespace.NewNamespaceController(ctx, client, objects, client.Discovery().ServerPreferredNamespacedResources,
		c.informers.Core().V1().Namespaces(), namespaceResync, corev1.FinalizerKubernetes)
	return func(ctx context.Context) { controller.Run(ctx, workers) }
}

// garbageCollector returns the loops that delete what a deleted owner leaves
// behind: the EndpointSlices of a Service go by no other way.
func (c *controllers) garbageCollector(ctx context.Context, client kubernetes.Interface, objects metadata.Interface, informersStarted <-chan struct{}) ([]func(context.Context), error) {
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	collector, err := garbagecollector.NewGarbageCollector(ctx, client, objects, mapper, garbagecollector.DefaultIgnoredResources(),
		informerfactory.NewInformerFactory(c.informers, c.metadata), informersStarted)
	if err != nil {
		return nil, fmt.Errorf("make the garbage collector: %w", err)
	}
	c.collector = collector
	return []func(context.Context){
		func(ctx context.Context) { collector.Run(ctx, workers, collectorSync) },
		func(ctx context.Context) { collector.Sync(ctx, collectable{client.Discovery()}, collectorSync) },
	}, nil
}

// collectable is discovery narrowed to what the collector shall watch, which
// would otherwise be all of about sixty kinds.
type collectable struct {
	discovery.ServerResourcesInterface
}

// ServerPreferredResources names the kinds that a Service or Pod owns or is owned by.
func (collectable) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	list := func(groupVersion string, names ...string) *metav1.APIResourceList {
		l := &metav1.APIResourceList{GroupVersion: groupVersion}
		for _, name := range names {
			l.APIResources = append(l.APIResources, metav1.APIResource{Name: name, Verbs: metav1.Verbs{"delete", "list", "watch"}})
		}
		return l
	}
	return []*metav1.APIResourceList{
		list(corev1.SchemeGroupVersion.String(), "endpoints", "nodes", "pods", "services"),
		list(discoveryv1.SchemeGroupVersion.String(), "endpointslices"),
	}, nil
}

// awaitSynced returns when the controllers have seen every object.
func (c *controllers) awaitSynced(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	err := wait.PollUntilContextTimeout(ctx, pollInterval, syncTimeout, true, func(ctx context.Context) (bool, error) {
		for _, synced := range c.informers.WaitForCacheSync(ctx.Done()) {
			if !synced {
				return false, nil
			}
		}
		return c.collector.IsSynced(logger), nil
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		return fmt.Errorf("wait %v for the controllers to see every object: %w", syncTimeout, err)
	}
}

// close ends the controllers and returns when they are done.
func (c *controllers) close() {
	c.stop()
	c.running.Wait()
	c.informers.Shutdown()
	c.metadata.Shutdown()
}
