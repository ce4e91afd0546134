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

// all returns what the API server holds.
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
	return all
}

// chance makes objects that often want the same as others.
type chance struct{ *rand.Rand }

func (c chance) oneIn(n int) bool { return c.IntN(n) == 0 }

func (c chance) address(prefix string, n int) string { return prefix + strconv.Itoa(1+c.IntN(n)) }

func (c chance) name() string { return "s" + strconv.Itoa(c.IntN(8)) }

func (c chance) service() *corev1.Service {
	svc := newService(c.name(), c.address("10.96.0.", 12))
	svc.Namespace = []string{"default", "other"}[c.IntN(2)]
	svc.Spec.Type = []corev1.ServiceType{"ClusterIP", "NodePort", "LoadBalancer", "NodePort", "ExternalName"}[c.IntN(5)]
	for i := range svc.Spec.Ports {
		svc.Spec.Ports[i].Port = int32(80 + c.IntN(2))
		svc.Spec.Ports[i].NodePort = int32(30000 + c.IntN(4))
	}
	if c.oneIn(3) {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{
			Name: "dns", Port: 53, Protocol: []corev1.Protocol{"TCP", "UDP", "SCTP"}[c.IntN(3)], NodePort: int32(30000 + c.IntN(4)),
		})
	}
	if c.oneIn(3) {
		svc.Spec.ExternalIPs = []string{c.address("192.0.2.", 3), c.address("10.96.0.", 12)}
	}
	if c.oneIn(3) {
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: c.address("192.0.2.", 3)}}
	}
	if c.oneIn(4) {
		svc.Annotations = map[string]string{"kube-splice.io/idle-timeout": []string{"5m", "x"}[c.IntN(2)]}
	}
	if c.oneIn(4) {
		svc.Spec.ClusterIPs = []string{svc.Spec.ClusterIP, c.address("fd00::", 4)}
	}
	switch c.IntN(12) {
	case 0:
		svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "None", nil
	case 1:
		svc.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "x"}
	}
	return svc
}

func (c chance) slice() *discoveryv1.EndpointSlice {
	prefix := []string{"10.244.1.", "fd00:1::", "127.0.0."}[min(2, c.IntN(8)/3)]
	var ips []string
	for range c.IntN(4) {
		ips = append(ips, c.address(prefix, 5))
	}
	slice := newSlice(c.name(), "slice"+strconv.Itoa(c.IntN(16)), ips)
	slice.Namespace = []string{"default", "other"}[c.IntN(2)]
	for i := range slice.Endpoints {
		ready, terminating := !c.oneIn(3), c.oneIn(4)
		slice.Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: &ready, Terminating: &terminating}
		slice.Endpoints[i].NodeName = new(c.address("n", 3))
	}
	if c.oneIn(8) {
		slice.Labels = nil
	}
	return slice
}

// change makes one change.
func (c chance) change(api *apiServer) {
	var o apiObject = c.service()
	if c.oneIn(2) {
		o = c.slice()
	}
	if c.oneIn(3) {
		api.remove(o)
	} else {
		api.put(o)
	}
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
	f := watchAPI(t, source.Kubernetes{Config: api.config()})
	f.first(t, "")
	last, said := &service.Snapshot{}, []source.Notice(nil)
	for step := range 500 {
		c.change(api)
		// One more change of each kind tells when all before it has arrived.
		number := int32(1000 + step)
		ip := fmt.Sprintf("10.250.%d.%d", step/250, step%250+1)
		api.put(newService("z", "10.97.0.1", func(svc *corev1.Service) { svc.Spec.Ports[0].Port = number }), newSlice("z", "z", []string{ip}))
		var next *service.Snapshot
		for next == nil {
			select {
			case s := <-f.snapshots:
				checkSuccessor(t, last, s)
				last = s
				if p := s.Port(tcp("z", "http")); p != nil && int32(p.Number) == number && len(p.Endpoints) == 1 && p.Endpoints[0].Addr.Addr().String() == ip {
					next = s
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("step %d: no Snapshot", step)
			}
		}
		want, notices := build(api.all())
		if !slices.EqualFunc(next.Ports, want.Ports, (*service.Port).Equal) {
			t.Fatalf("step %d: %v\nwant %v", step, portals(next), portals(want))
		}
		checkSaid(t, f.log.rest(), newlySaid(notices, said))
		said = notices
		if t.Failed() {
			t.Fatalf("step %d", step)
		}
	}
}

// checkSuccessor checks that two Snapshots are not equal, but that what is equal in
// them is the same.
func checkSuccessor(t *testing.T, last, next *service.Snapshot) {
	t.Helper()
	if slices.Equal(next.Ports, last.Ports) {
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
