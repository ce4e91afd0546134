package source_test

import (
	"cmp"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/client-go/rest"
)

// apiObject is an object as the API server holds it.
type apiObject interface {
	runtime.Object
	metav1.Object
}

// apiServer holds Services, EndpointSlices and Nodes and lets them be listed and
// watched over HTTP as a real API server does: with selectors, in protobuf or JSON,
// with initial events, bookmarks and expired versions.
type apiServer struct {
	codecs serializer.CodecFactory
	server *httptest.Server
	tls    bool
	conns  sync.WaitGroup // open connections
	events eventBook

	jsonOnly    bool                               // set before the first request
	noWatchList bool                               // set before the first request
	inflate     func(o apiObject)                  // of what is sent; set before the first request
	asked       func(what string, r *http.Request) // "list services"; set before the first request

	mu        sync.Mutex
	version   int
	compacted int // what happened before is forgotten
	objects   map[string]map[string]apiObject
	history   []apiEvent
	changed   chan struct{} // closed at the next event
	forbidden map[string]bool
	held      map[string]chan struct{} // by resource: closed when it may be answered
}

// apiEvent is a change of one object; before or after may be nil.
type apiEvent struct {
	version       int
	resource      string
	before, after apiObject
}

func newAPIServer(t testing.TB, secure bool) *apiServer {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, eventsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	a := &apiServer{
		codecs: serializer.NewCodecFactory(scheme), events: newEventBook(), tls: secure, version: 1, asked: func(string, *http.Request) {},
		objects: map[string]map[string]apiObject{}, changed: make(chan struct{}),
		forbidden: map[string]bool{}, held: map[string]chan struct{}{},
	}
	a.listen(t, "127.0.0.1:0")
	t.Cleanup(func() { a.goAway() })
	return a
}

func (a *apiServer) listen(t testing.TB, address string) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	config := &http.Server{Handler: a, ErrorLog: log.New(io.Discard, "", 0), ConnState: func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			a.conns.Add(1)
		case http.StateClosed:
			a.conns.Done()
		}
	}}
	a.server = &httptest.Server{Listener: listener, Config: config, EnableHTTP2: true}
	if a.tls {
		a.server.StartTLS()
	} else {
		a.server.Start()
	}
}

// goAway drops all connections and takes no more.
func (a *apiServer) goAway() {
	_ = a.server.Config.Close()
	a.server.Close()
}

// comeBack serves again at the same address.
func (a *apiServer) comeBack(t testing.TB) { a.listen(t, a.server.Listener.Addr().String()) }

// drop breaks all connections.
func (a *apiServer) drop() { a.server.CloseClientConnections() }

// config is what a client needs.
func (a *apiServer) config() *rest.Config {
	config := &rest.Config{Host: a.server.URL, QPS: 1000, Burst: 1000}
	if a.tls {
		config.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.server.Certificate().Raw})
	}
	return config
}

func resourceOf(o apiObject) string {
	switch o.(type) {
	case *corev1.Service:
		return "services"
	case *corev1.Node:
		return "nodes"
	}
	return "endpointslices"
}

// put creates or replaces objects.
func (a *apiServer) put(objects ...apiObject) {
	for _, o := range objects {
		a.write(resourceOf(o), o.GetNamespace()+"/"+o.GetName(), o.DeepCopyObject().(apiObject))
	}
}

// remove deletes objects.
func (a *apiServer) remove(objects ...apiObject) {
	for _, o := range objects {
		a.write(resourceOf(o), o.GetNamespace()+"/"+o.GetName(), nil)
	}
}

func (a *apiServer) write(resource, name string, after apiObject) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.objects[resource] == nil {
		a.objects[resource] = map[string]apiObject{}
	}
	a.version++
	before := a.objects[resource][name]
	if after == nil {
		delete(a.objects[resource], name)
	} else {
		after.SetResourceVersion(strconv.Itoa(a.version))
		a.objects[resource][name] = after
	}
	a.history = append(a.history, apiEvent{a.version, resource, before, after})
	close(a.changed)
	a.changed = make(chan struct{})
}

// compact forgets what happened so far, so that no watch can go on from before now.
func (a *apiServer) compact() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	a.compacted, a.history = a.version, nil
}

// forbid refuses, or grants again, "list services" from the next request on.
func (a *apiServer) forbid(what string, yes bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forbidden[what] = yes
}

// hold keeps requests for a resource without answer until the function returned
// is called.
func (a *apiServer) hold(resource string) (release func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	until := make(chan struct{})
	a.held[resource] = until
	return func() { close(until) }
}

// ServeHTTP answers one list or watch.
func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query, resource, verb := r.URL.Query(), path.Base(r.URL.Path), verbOf(r)
	a.asked(verb+" "+resource, r)
	a.mu.Lock()
	until, forbidden := a.held[resource], a.forbidden[verb+" "+resource]
	a.mu.Unlock()
	if until != nil {
		select {
		case <-until:
		case <-r.Context().Done():
			return
		}
	}
	out, err := a.answer(w, r, resource)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	case forbidden:
		out.refuse(http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf("%s is forbidden: User \"test\" cannot %s it", resource, verb))
	case query.Get("sendInitialEvents") != "" && a.noWatchList:
		out.refuse(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "sendInitialEvents is forbidden")
	case verb == "create":
		a.events.take(a.codecs.UniversalDeserializer(), w, r)
	case verb == "list":
		out.list()
	default:
		out.watch()
	}
}

// apiAnswer is one answer being written.
type apiAnswer struct {
	*apiServer
	w        http.ResponseWriter
	r        *http.Request
	resource string
	media    runtime.SerializerInfo
	object   runtime.Encoder
	selects  func(o apiObject) bool
}

func (a *apiServer) answer(w http.ResponseWriter, r *http.Request, resource string) (*apiAnswer, error) {
	mediaType := runtime.ContentTypeJSON
	if strings.HasPrefix(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) && !a.jsonOnly {
		mediaType = runtime.ContentTypeProtobuf
	}
	media, _ := runtime.SerializerInfoForMediaType(a.codecs.SupportedMediaTypes(), mediaType)
	version := corev1.SchemeGroupVersion
	if resource == "endpointslices" {
		version = discoveryv1.SchemeGroupVersion
	}
	byLabel, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return nil, err
	}
	byField, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		return nil, err
	}
	selects := func(o apiObject) bool {
		set := fields.Set{"metadata.name": o.GetName()}
		if svc, is := o.(*corev1.Service); is {
			set["spec.clusterIP"] = svc.Spec.ClusterIP
		}
		return byLabel.Matches(labels.Set(o.GetLabels())) && byField.Matches(set)
	}
	w.Header().Set("Content-Type", mediaType)
	return &apiAnswer{
		apiServer: a, w: w, r: r, resource: resource, media: media, selects: selects,
		object: a.codecs.EncoderForVersion(media.Serializer, version),
	}, nil
}

func (o *apiAnswer) refuse(code int, reason metav1.StatusReason, message string) {
	o.w.WriteHeader(code)
	_ = o.object.Encode(&metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message}, o.w)
}

// now returns the selected objects in the order of their versions, and the version
// of it all.
func (o *apiAnswer) now() ([]apiObject, int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := slices.DeleteFunc(slices.Collect(maps.Values(o.objects[o.resource])), func(x apiObject) bool { return !o.selects(x) })
	version := func(x apiObject) int { n, _ := strconv.Atoi(x.GetResourceVersion()); return n }
	slices.SortFunc(all, func(x, y apiObject) int { return cmp.Compare(version(x), version(y)) })
	return all, o.version
}

func (o *apiAnswer) list() {
	all, version := o.now()
	var list runtime.Object
	switch o.resource {
	case "services":
		list = &corev1.ServiceList{}
	case "nodes":
		list = &corev1.NodeList{}
	default:
		list = &discoveryv1.EndpointSliceList{}
	}
	items := make([]runtime.Object, len(all))
	for i, x := range all {
		items[i] = o.sent(x)
	}
	_ = meta.SetList(list, items)
	list.(metav1.ListInterface).SetResourceVersion(strconv.Itoa(version))
	_ = o.object.Encode(list, o.w)
}

// sent returns an object as it is sent.
func (o *apiAnswer) sent(x apiObject) apiObject {
	if o.inflate != nil {
		x = x.DeepCopyObject().(apiObject)
		o.inflate(x)
	}
	return x
}

func (o *apiAnswer) watch() {
	if o.media.MediaType == runtime.ContentTypeProtobuf {
		o.w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	}
	frames := o.media.StreamSerializer.Framer.NewFrameWriter(o.w)
	stream := streaming.NewEncoder(frames, o.codecs.EncoderForVersion(o.media.StreamSerializer.Serializer, corev1.SchemeGroupVersion))
	send := func(kind string, x runtime.Object) {
		raw, err := runtime.Encode(o.object, x)
		if err == nil {
			err = stream.Encode(&metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: raw}})
		}
		if err != nil && o.r.Context().Err() == nil {
			panic(err)
		}
	}
	from, _ := strconv.Atoi(o.r.URL.Query().Get("resourceVersion"))
	if o.r.URL.Query().Get("sendInitialEvents") == "true" {
		var all []apiObject
		all, from = o.now()
		for _, x := range all {
			send("ADDED", o.sent(x))
		}
		send("BOOKMARK", o.bookmark(from))
	}
	for {
		_ = http.NewResponseController(o.w).Flush()
		o.mu.Lock()
		expired, changed := from < o.compacted, o.changed
		at, _ := slices.BinarySearchFunc(o.history, from+1, func(e apiEvent, v int) int { return cmp.Compare(e.version, v) })
		events := slices.Clone(o.history[at:])
		o.mu.Unlock()
		if expired {
			send("ERROR", &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old resource version"})
			return
		}
		for _, e := range events {
			from = e.version
			o.pass(e, send)
		}
		if len(events) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-o.r.Context().Done():
			return
		}
	}
}

// pass sends an event as it looks through the selectors.
func (o *apiAnswer) pass(e apiEvent, send func(kind string, x runtime.Object)) {
	if e.resource != o.resource {
		return
	}
	was, is := e.before != nil && o.selects(e.before), e.after != nil && o.selects(e.after)
	switch {
	case was && is:
		send("MODIFIED", o.sent(e.after))
	case is:
		send("ADDED", o.sent(e.after))
	case was:
		gone := e.before.DeepCopyObject().(apiObject)
		gone.SetResourceVersion(strconv.Itoa(e.version))
		send("DELETED", o.sent(gone))
	}
}

// bookmark ends the initial events.
func (o *apiAnswer) bookmark(version int) apiObject {
	m := metav1.ObjectMeta{ResourceVersion: strconv.Itoa(version), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}
	switch o.resource {
	case "services":
		return &corev1.Service{ObjectMeta: m}
	case "nodes":
		return &corev1.Node{ObjectMeta: m}
	}
	return &discoveryv1.EndpointSlice{ObjectMeta: m}
}
