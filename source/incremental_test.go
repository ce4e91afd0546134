package source_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

// all returns what the API server holds, of which one Node at most.
func (a *apiServer) all() source.Objects {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all source.Objects
	for _, o := range a.objects["services"] {
		all.Services = append(all.Services, o.(*corev1.Service))
	}
	for _, o := range a.objects["endpointslices"] {
		all.Slices = append(all.Slices, o.(*discoveryv1.EndpointSlice))
	}
	for _, o := range a.objects["nodes"] {
		all.Node = o.(*corev1.Node)
	}
	return all
}

// newlySaid returns what is said of the objects now and was not before. That a slice
// has no Service is said of files alone: in a cluster it is so for a moment.
func newlySaid(now, before []source.Notice) []source.Notice {
	var fresh []source.Notice
	for _, n := range now {
		orphan := strings.Contains(n.Text, "there is no Service of that name") || strings.Contains(n.Text, "belongs to no Service")
		if !orphan && !slices.Contains(before, n) && !slices.Contains(fresh, n) {
			fresh = append(fresh, n)
		}
	}
	return fresh
}

func TestEachSnapshotIsWhatAllObjectsTogetherBuild(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := chance{rand.New(rand.NewPCG(seed, 0))}
	api := newAPIServer(t, false)
	api.put(newNode("172.20.0.1"))
	f := watchAPI(t, source.Kubernetes{Config: api.config(), NodeName: "n1"})
	last, said := f.first(t, ""), []source.Notice(nil)
	for step := range 500 {
		c.change(api)
		// One more change of each kind tells when all before it has arrived.
		number := int32(1000 + step)
		ip := fmt.Sprintf("10.250.%d.%d", step/250, step%250+1)
		api.put(newService("z", "10.97.0.1", func(svc *corev1.Service) { svc.Spec.Ports[0].Port = number }), newSlice("z", "z", []string{ip}))
		nodeIPs := c.changeNode(api, fmt.Sprintf("172.20.%d.%d", 1+step/250, step%250+1))
		var next *service.Snapshot
		for next == nil {
			select {
			case s := <-f.snapshots:
				checkSuccessor(t, last, s)
				last = s
				if p := s.Port(tcp("z", "http")); p != nil && int32(p.Number) == number && slices.Equal(addrs(p), []string{ip + ":8080"}) &&
					slices.Equal(texts(s.NodeIPs), nodeIPs) {
					next = s
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("step %d: no Snapshot", step)
			}
		}
		want, notices := source.Build(nil, api.all(), source.Options{NodeName: "n1"})
		if !slices.EqualFunc(next.Ports, want.Ports, (*service.Port).Equal) || !sameNode(next, want) {
			t.Fatalf("step %d: %v %+v\nwant %v %+v", step, portals(next), next.Node, portals(want), want.Node)
		}
		checkSaid(t, f.log.rest(), newlySaid(notices, said))
		said = notices
		if t.Failed() {
			t.Fatalf("step %d", step)
		}
	}
}

func sameNode(a, b *service.Snapshot) bool {
	return a.Node == b.Node && slices.Equal(a.NodeIPs, b.NodeIPs) && slices.Equal(a.PodCIDRs, b.PodCIDRs)
}

// checkSuccessor checks that two Snapshots are not equal, but that what is equal in
// them is the same.
func checkSuccessor(t *testing.T, last, next *service.Snapshot) {
	t.Helper()
	if slices.Equal(next.Ports, last.Ports) && sameNode(next, last) {
		t.Error("a Snapshot was published although nothing changed")
	}
	for _, p := range next.Ports {
		if old := last.Port(p.Name); old != nil && old != p && old.Equal(p) {
			t.Errorf("%v did not change but is another Port", p.Name)
		}
	}
}

// checkSaid checks that the log has a line for each notice, and no other.
func checkSaid(t *testing.T, lines []string, want []source.Notice) {
	t.Helper()
	for _, n := range want {
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, strconv.Quote(n.Text)) }) {
			t.Errorf("%v is not said", n)
		}
	}
	if len(lines) != len(want) {
		t.Errorf("log: %q\nwant: %v", lines, want)
	}
}

// BenchmarkOneEndpointOf10000 is the way of one changed EndpointSlice from the API
// server's memory to the Snapshot, with 10,000 Services of ten endpoints.
func BenchmarkOneEndpointOf10000(b *testing.B) {
	const services = 10_000
	api := newAPIServer(b, false)
	slice := func(i, last int) *discoveryv1.EndpointSlice {
		var ips []string
		for j := range 9 {
			ips = append(ips, fmt.Sprintf("10.%d.%d.%d", i/250, i%250, j+1))
		}
		name := fmt.Sprintf("web%d", i)
		return newSlice(name, name, append(ips, fmt.Sprintf("10.200.%d.%d", last/250%250, last%250+1)))
	}
	for i := range services {
		api.put(newService(fmt.Sprintf("web%d", i), fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)), slice(i, 0))
	}
	f := watchAPI(b, source.Kubernetes{Config: api.config()})
	if s := <-f.snapshots; len(s.Ports) != services {
		b.Fatalf("%d ports", len(s.Ports))
	}
	for i := 0; b.Loop(); i++ {
		api.put(slice(i%services, i+1))
		<-f.snapshots
	}
}
