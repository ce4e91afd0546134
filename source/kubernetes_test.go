package source_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

// watchAPI runs k until the end of the test.
func watchAPI(t testing.TB, k source.Kubernetes) *follower {
	t.Helper()
	f := &follower{snapshots: make(chan *service.Snapshot, 1000), log: newLogbook()}
	if k.Log == nil {
		k.Log = f.log.logger()
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx, func(s *service.Snapshot) { f.snapshots <- s }) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("Run did not end with its context")
		}
	})
	return f
}

// until returns the first Snapshot from now on that reads as text.
func (f *follower) until(t testing.TB, text string) *service.Snapshot {
	t.Helper()
	late := time.After(20 * time.Second)
	last := "none"
	for {
		select {
		case s := <-f.snapshots:
			if last = read(s); last == text {
				return s
			}
		case <-late:
			t.Fatalf("no Snapshot %q; the last one was %q; log: %q", text, last, f.log.rest())
		}
	}
}

// first expects the next Snapshot to read as text.
func (f *follower) first(t testing.TB, text string) *service.Snapshot {
	t.Helper()
	select {
	case s := <-f.snapshots:
		if got := read(s); got != text {
			t.Fatalf("Snapshot %q, want %q", got, text)
		}
		return s
	case <-time.After(20 * time.Second):
		t.Fatalf("no Snapshot %q; log: %q", text, f.log.rest())
		return nil
	}
}

// read returns a Snapshot as text: "web=10.244.1.1,10.244.1.2 dns=".
func read(s *service.Snapshot) string {
	var words []string
	for _, p := range s.Ports {
		var ips []string
		for _, e := range p.Endpoints {
			ips = append(ips, e.Addr.Addr().String())
		}
		words = append(words, p.Name.Service+"="+strings.Join(ips, ","))
	}
	return strings.Join(words, " ")
}

func TestServicesOfAnAPIServerAreFollowed(t *testing.T) {
	for _, c := range []struct {
		name                        string
		tls, json, withoutWatchList bool
	}{
		{name: "protobuf"}, {name: "JSON", json: true}, {name: "TLS", tls: true},
		{name: "list, then watch", withoutWatchList: true}, {name: "JSON, list, then watch", json: true, withoutWatchList: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			api := newAPIServer(t, c.tls)
			api.jsonOnly, api.noWatchList = c.json, c.withoutWatchList
			var lists atomic.Int32
			api.asked = func(what string, r *http.Request) {
				if strings.HasPrefix(what, "list") {
					lists.Add(1)
				}
				if accept := r.Header.Get("Accept"); !strings.HasPrefix(accept, "application/vnd.kubernetes.protobuf") || !strings.Contains(accept, "application/json") {
					t.Errorf("%s accepts %q", what, accept)
				}
			}
			api.put(newService("web", "10.96.0.1"), newSlice("web", "web-a", []string{"10.244.1.1"}), newService("dns", "10.96.0.2"))
			f := watchAPI(t, source.Kubernetes{Config: api.config()})
			first := f.first(t, "dns= web=10.244.1.1")
			api.put(newSlice("web", "web-b", []string{"10.244.1.2"}))
			second := f.first(t, "dns= web=10.244.1.1,10.244.1.2")
			if first.Ports[0] != second.Ports[0] {
				t.Error("the port that did not change lost its pointer")
			}
			api.remove(newSlice("web", "web-a", nil))
			f.first(t, "dns= web=10.244.1.2")
			api.remove(newService("web", ""))
			f.first(t, "dns=")
			api.put(newService("web", "10.96.0.1"))
			f.first(t, "dns= web=10.244.1.2")
			if lines := f.log.rest(); len(lines) > 0 {
				t.Errorf("log: %q", lines)
			}
			if (lists.Load() > 0) != c.withoutWatchList {
				t.Errorf("%d lists", lists.Load())
			}
		})
	}
}

func TestOnlyWhatIsServedIsAskedFor(t *testing.T) {
	api := newAPIServer(t, false)
	asked := make(chan string, 100)
	api.asked = func(_ string, r *http.Request) {
		asked <- r.URL.Path + " " + r.URL.Query().Get("labelSelector") + " " + r.URL.Query().Get("fieldSelector")
	}
	api.put(newNode("192.0.2.1"))
	watchAPI(t, source.Kubernetes{Config: api.config(), NodeName: "n1"}).first(t, "")
	got := []string{<-asked, <-asked, <-asked}
	slices.Sort(got)
	equal(t, "requests", got, []string{
		"/api/v1/nodes  metadata.name=n1",
		"/api/v1/services !service.kubernetes.io/service-proxy-name spec.clusterIP!=None",
		"/apis/discovery.k8s.io/v1/endpointslices !service.kubernetes.io/headless ",
	})
}

func TestNothingIsPublishedBeforeServicesAndSlicesAreListed(t *testing.T) {
	for _, resource := range []string{"services", "endpointslices"} {
		t.Run(resource+" last", func(t *testing.T) {
			api := newAPIServer(t, false)
			api.noWatchList = true
			api.put(newService("web", "10.96.0.1"), newSlice("web", "web-a", []string{"10.244.1.1"}))
			watched := make(chan string, 100)
			api.asked = func(what string, _ *http.Request) {
				if strings.HasPrefix(what, "watch") {
					watched <- what
				}
			}
			release := api.hold(resource)
			f := watchAPI(t, source.Kubernetes{Config: api.config()})
			other := map[string]string{"services": "endpointslices", "endpointslices": "services"}[resource]
			// The second watch of the other one follows its list.
			for seen := 0; seen < 2; {
				if what := <-watched; what == "watch "+other {
					seen++
				}
			}
			f.quiet(t)
			release()
			f.first(t, "web=10.244.1.1")
		})
	}
}

func TestEmptyListsCount(t *testing.T) {
	api := newAPIServer(t, false)
	watchAPI(t, source.Kubernetes{Config: api.config()}).first(t, "")
}

func TestServicesForOthersAreNotServed(t *testing.T) {
	api := newAPIServer(t, false)
	odd := newService("odd", "10.96.0.2")
	steps := []struct {
		name string
		edit func(*corev1.Service)
	}{
		{"another proxy's", func(svc *corev1.Service) {
			svc.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "x"}
		}},
		{"headless", func(svc *corev1.Service) { svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "None", []string{"None"} }},
		{"external name", func(svc *corev1.Service) { svc.Spec.Type, svc.Spec.ClusterIP = corev1.ServiceTypeExternalName, "" }},
	}
	api.put(newSlice("odd", "odd-a", []string{"10.244.1.1"}), odd)
	f := watchAPI(t, source.Kubernetes{Config: api.config()})
	f.first(t, "odd=10.244.1.1")
	for _, step := range steps {
		other := odd.DeepCopy()
		step.edit(other)
		api.put(other)
		f.first(t, "")
		api.put(odd)
		f.first(t, "odd=10.244.1.1")
	}
	headless := newSlice("odd", "odd-a", []string{"10.244.1.9"}, func(s *discoveryv1.EndpointSlice) {
		s.Labels["service.kubernetes.io/headless"] = ""
	})
	api.put(headless)
	f.first(t, "odd=")
	if lines := f.log.rest(); len(lines) > 0 {
		t.Errorf("log: %q", lines)
	}
}

func TestBadObjectsOfAnAPIServerAreSaidOnce(t *testing.T) {
	api := newAPIServer(t, false)
	sctp := newService("sctp", "10.96.0.3", func(svc *corev1.Service) { svc.Spec.Ports[0].Protocol = corev1.ProtocolSCTP })
	bad := newSlice("web", "bad", []string{"127.0.0.1"})
	named := newSlice("web", "named", []string{"pod.example"}, func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN })
	portless := newSlice("web", "portless", []string{"10.244.1.3"}, func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = nil })
	api.put(newService("web", "10.96.0.1"), sctp, bad, named, portless, newSlice("web", "good", []string{"10.244.1.1"}))
	f := watchAPI(t, source.Kubernetes{Config: api.config()})
	f.first(t, "web=10.244.1.1")
	said := strings.Join(f.log.rest(), "\n")
	for _, object := range []string{"Service default/sctp", "EndpointSlice default/bad", "EndpointSlice default/named"} {
		if strings.Count(said, object) != 1 {
			t.Errorf("%s is not said once:\n%s", object, said)
		}
	}
	api.put(newSlice("web", "good", []string{"10.244.1.2"}))
	f.first(t, "web=10.244.1.2")
	api.put(newSlice("web", "bad", []string{"10.244.1.4"}))
	f.first(t, "web=10.244.1.2,10.244.1.4")
	if lines := f.log.rest(); len(lines) > 0 {
		t.Errorf("said again: %q", lines)
	}
	api.put(newSlice("web", "bad", []string{"127.0.0.1"}))
	f.first(t, "web=10.244.1.2")
	f.log.wait(t, "EndpointSlice default/bad", "127.0.0.1")
}

// newNode returns Node n1 with internal addresses.
func newNode(ips ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	for _, ip := range ips {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return node
}

func TestFirstSnapshotWaitsForTheNode(t *testing.T) {
	api := newAPIServer(t, false)
	other := newNode("192.0.2.9")
	other.Name = "n2"
	api.put(newService("web", "10.96.0.1"), other, newNode())
	answered := make(chan string, 100)
	api.asked = func(what string, _ *http.Request) { answered <- what }
	f := watchAPI(t, source.Kubernetes{Config: api.config(), NodeName: "n1", NodeWait: time.Minute})
	for range 3 {
		<-answered
	}
	api.put(newNode("192.0.2.1"))
	s := f.first(t, "web=")
	equal(t, "node addresses", s.NodeIPs, []netip.Addr{netip.MustParseAddr("192.0.2.1")})
	api.put(newNode("192.0.2.2"))
	s = f.first(t, "web=")
	equal(t, "node addresses", s.NodeIPs, []netip.Addr{netip.MustParseAddr("192.0.2.2")})
}

func TestMissingNodeDoesNotBlockForEver(t *testing.T) {
	api := newAPIServer(t, false)
	api.put(newService("web", "10.96.0.1"))
	api.hold("nodes")
	f := watchAPI(t, source.Kubernetes{Config: api.config(), NodeName: "n1", NodeWait: 200 * time.Millisecond})
	f.first(t, "web=")
	f.log.wait(t, `no Node \"n1\"`, "going on without it")
}

func TestChangesWithinTheIntervalGather(t *testing.T) {
	api := newAPIServer(t, false)
	api.put(newService("web", "10.96.0.1"))
	const interval = 2 * time.Second // in which the changes are made, however busy the machine is
	f := watchAPI(t, source.Kubernetes{Config: api.config(), MinInterval: interval})
	f.first(t, "web=")
	began := time.Now()
	var ips []string
	for i := range 50 {
		ips = append(ips, fmt.Sprintf("10.244.1.%d", i+101))
		api.put(newSlice("web", "web-a", ips))
	}
	f.first(t, "web="+strings.Join(ips, ","))
	if took := time.Since(began); took < interval*9/10 {
		t.Errorf("the next Snapshot came after %v, want %v", took, interval)
	}
	f.quiet(t)
}

func TestLabelsAndAnnotationsThatNobodyReadsChangeNothing(t *testing.T) {
	api := newAPIServer(t, false)
	web := newService("web", "10.96.0.1")
	api.put(web)
	f := watchAPI(t, source.Kubernetes{Config: api.config()})
	f.first(t, "web=")
	edited := web.DeepCopy()
	edited.Labels, edited.Annotations = map[string]string{"team": "blue"}, map[string]string{"note": "edited"}
	api.put(edited)
	f.quiet(t)
}

func TestUnusableConfigIsAnErrorAtOnce(t *testing.T) {
	for name, config := range map[string]*rest.Config{
		"none":        nil,
		"no such CA":  {Host: "https://127.0.0.1:1", TLSClientConfig: rest.TLSClientConfig{CAFile: "/no/such/file"}},
		"no such URL": {Host: "127.0.0.1:1/%zz"},
	} {
		k := source.Kubernetes{Config: config}
		if err := k.Run(t.Context(), func(*service.Snapshot) {}); err == nil || !strings.Contains(err.Error(), "connect to the API server") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestWhatNobodyReadsIsNotKept(t *testing.T) {
	const services, waste = 300, 50_000
	api := newAPIServer(t, false)
	for i := range services {
		name := fmt.Sprintf("web%d", i)
		api.put(newService(name, fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)), newSlice(name, name, []string{"10.244.1.1"}))
	}
	api.inflate = func(o apiObject) {
		o.SetAnnotations(map[string]string{"kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("x", waste)})
		o.SetManagedFields([]metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(strings.Repeat("x", waste))}})
	}
	heap := func() uint64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before := heap()
	f := watchAPI(t, source.Kubernetes{Config: api.config()})
	if s := <-f.snapshots; len(s.Ports) != services {
		t.Fatalf("%d ports", len(s.Ports))
	}
	if grown := int64(heap()-before) / services; grown > waste/2 {
		t.Errorf("%d bytes are kept for a Service and its slice", grown)
	}
}
