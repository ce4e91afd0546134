package source

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/connrotation"
)

// resource is what is read of one kind.
type resource struct {
	name    string // "services", as the API's paths and rights name it
	version schema.GroupVersion
	labels  string // label selector
	fields  string // field selector
	newList func() runtime.Object
}

// String returns the resource as an RBAC rule names it: "endpointslices.discovery.k8s.io".
func (r resource) String() string {
	return schema.GroupResource{Group: r.version.Group, Resource: r.name}.String()
}

// The selectors are kube-proxy's. They hold in the API server: a Service that gains
// the label goes as if it were deleted, and headless Services never come.
var (
	readServices = resource{
		name: "services", version: corev1.SchemeGroupVersion,
		labels: "!" + labelProxyName, fields: "spec.clusterIP!=" + corev1.ClusterIPNone,
		newList: func() runtime.Object { return &corev1.ServiceList{} },
	}
	readSlicesOfAll = resource{
		name: "endpointslices", version: discoveryv1.SchemeGroupVersion,
		labels:  "!" + corev1.IsHeadlessService,
		newList: func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
	}
)

// readNode is the one Node of that name.
func readNode(name string) resource {
	return resource{
		name: "nodes", version: corev1.SchemeGroupVersion, fields: "metadata.name=" + name,
		newList: func() runtime.Object { return &corev1.NodeList{} },
	}
}

// protobuf is what we ask for first: five times cheaper to read than JSON.
const protobuf = "application/vnd.kubernetes.protobuf"

// client reads resources of one API server, all by one transport of its own.
type client struct {
	config    *rest.Config
	dialer    *connrotation.Dialer
	transport http.RoundTripper
	codecs    serializer.CodecFactory
	queries   runtime.ParameterCodec
	troubles  *troubles
}

func newClient(config *rest.Config, t *troubles) (*client, error) {
	if config == nil {
		return nil, errors.New("no API server is configured")
	}
	config = rest.CopyConfig(config)
	config.Timeout = 0 // it would end every watch
	if config.ContentType == "" {
		config.ContentType = protobuf
	}
	if config.AcceptContentTypes == "" {
		config.AcceptContentTypes = config.ContentType + "," + runtime.ContentTypeJSON
	}
	dial := config.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	dialer := connrotation.NewDialer(dial)
	config.Dial = dialer.DialContext
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Service{}, &corev1.ServiceList{}, &corev1.Node{}, &corev1.NodeList{})
	scheme.AddKnownTypes(discoveryv1.SchemeGroupVersion, &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{})
	scheme.AddKnownTypes(eventsv1.SchemeGroupVersion, &eventsv1.Event{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	metav1.AddToGroupVersion(scheme, eventsv1.SchemeGroupVersion)
	metav1.AddToGroupVersion(scheme, discoveryv1.SchemeGroupVersion)
	return &client{
		config:    config,
		dialer:    dialer,
		transport: transport,
		codecs:    serializer.NewCodecFactory(scheme),
		queries:   runtime.NewParameterCodec(scheme),
		troubles:  t,
	}, nil
}

// close closes the connections.
func (c *client) close() {
	utilnet.CloseIdleConnectionsFor(c.transport) // and those still being dialled
	c.dialer.CloseAll()
}

// listWatch returns how a reflector reads a resource.
func (c *client) listWatch(r resource) (*cache.ListWatch, error) {
	config := rest.CopyConfig(c.config)
	config.GroupVersion = &r.version
	config.APIPath = "/apis"
	if r.version.Group == corev1.GroupName {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = c.codecs.WithoutConversion()
	seen := observed{c.transport, r, c.troubles}
	api, err := rest.RESTClientForConfigAndClient(config, &http.Client{Transport: seen})
	if err != nil {
		return nil, err
	}
	request := func(options metav1.ListOptions) *rest.Request {
		options.LabelSelector, options.FieldSelector = r.labels, r.fields
		return api.Get().Resource(r.name).VersionedParams(&options, c.queries)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list := r.newList()
			err := request(options).Do(ctx).Into(list)
			if version, _ := apimeta.NewAccessor().ResourceVersion(list); err == nil && version == "" {
				err = fmt.Errorf("what answers is no list of %s: is this an API server?", r)
			}
			c.troubles.answered(ctx, "list", r, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
			options.Watch = true
			w, err := request(options).Watch(ctx)
			if options.SendInitialEvents != nil {
				return w, final(err, options.ResourceVersion) // if it failed, a list follows
			}
			c.troubles.answered(ctx, "watch", r, err)
			return w, err
		},
	}, nil
}

// final hides from a reflector that an error may pass. It would repeat a watch that
// is to begin with the whole state after a sleep that does not end with its context,
// or without any where it names no version that could be too old.
func final(err error, version string) error {
	expired := version == "" && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err))
	if expired || utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err) {
		return fmt.Errorf("%v", err)
	}
	return err
}
