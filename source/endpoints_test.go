package source_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

type sliceEdit = func(*discoveryv1.EndpointSlice)

func conditions(c discoveryv1.EndpointConditions) sliceEdit {
	return func(s *discoveryv1.EndpointSlice) {
		for i := range s.Endpoints {
			s.Endpoints[i].Conditions = c
		}
	}
}

func revision(v string) sliceEdit {
	return func(s *discoveryv1.EndpointSlice) { s.ResourceVersion = v }
}

func created(second int64) sliceEdit {
	return func(s *discoveryv1.EndpointSlice) { s.CreationTimestamp = metav1.NewTime(time.Unix(second, 0)) }
}

func portNumber(n int32) sliceEdit {
	return func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = &n }
}

// webPort builds Service default/web from slices and returns its port.
func webPort(slices ...*discoveryv1.EndpointSlice) (*service.Port, []source.Notice) {
	snapshot, notices := build(source.Objects{Services: []*corev1.Service{newService("web", "10.96.0.1")}, Slices: slices})
	return snapshot.Ports[0], notices
}

func TestAllSlicesOfAServiceAreMerged(t *testing.T) {
	var slices []*discoveryv1.EndpointSlice
	total := 0
	for i, count := range []int{100, 100, 50} {
		var addresses []string
		for j := range count {
			addresses = append(addresses, fmt.Sprintf("10.244.%d.%d", i, j+1))
		}
		total += count
		slices = append(slices, newSlice("web", fmt.Sprint("web-", i), addresses))
	}
	stranger := newSlice("web", "stranger", []string{"10.244.9.9"}, func(s *discoveryv1.EndpointSlice) { s.Namespace = "other" })
	elsewhere := func(svc *corev1.Service) { svc.Namespace = "other" }
	snapshot := buildQuietly(t, source.Objects{
		Services: []*corev1.Service{newService("web", "10.96.0.1"), newService("web", "10.96.0.2", elsewhere), newService("api", "10.96.0.3")},
		Slices:   append(slices, stranger, newSlice("api", "api", []string{"10.244.9.8"})),
	})
	if p := snapshot.Port(tcp("web", "http")); len(p.Endpoints) != total {
		t.Errorf("%d endpoints, want %d", len(p.Endpoints), total)
	}
}

func TestEndpointsAreSortedAndEachAddressAndPortOnce(t *testing.T) {
	p, _ := webPort(
		newSlice("web", "a", []string{"10.244.1.12", "10.244.1.2", "10.244.1.12"}),
		newSlice("web", "b", []string{"10.244.1.2"}),
		newSlice("web", "c", []string{"10.244.1.2"}, portNumber(8081)),
	)
	equal(t, "endpoints", addrs(p), []string{"10.244.1.2:8080", "10.244.1.2:8081", "10.244.1.12:8080"})
}

func TestAbsentConditionsMeanReadyServingNotTerminating(t *testing.T) {
	p, _ := webPort(newSlice("web", "a", []string{"10.244.1.1"}, func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].NodeName, s.Endpoints[0].Zone = new("node"), new("eu-1a")
		s.Endpoints[0].Addresses = append(s.Endpoints[0].Addresses, "10.244.1.99") // only the first one counts
	}))
	e := p.Endpoints[0]
	if len(p.Endpoints) != 1 || !e.Ready || !e.Serving || e.Terminating || e.Node != "node" || e.Zone != "eu-1a" {
		t.Errorf("got %+v", p.Endpoints)
	}
}

func TestNewerSliceIsBelieved(t *testing.T) {
	ready, notReady := conditions(discoveryv1.EndpointConditions{}), conditions(discoveryv1.EndpointConditions{Ready: new(false)})
	terminating := conditions(discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)})
	for _, c := range []struct {
		name       string
		old, newer []sliceEdit // the older slice is "b", the newer one "a", unless only the name decides
		ready      bool
	}{
		{"by revision, as numbers", []sliceEdit{ready, revision("99"), created(9)}, []sliceEdit{notReady, revision("100"), created(5)}, false},
		{"by age", []sliceEdit{ready, created(5)}, []sliceEdit{notReady, created(9)}, false},
		{"ready again", []sliceEdit{notReady, revision("1")}, []sliceEdit{ready, revision("2")}, true},
		{"an address reused", []sliceEdit{ready, revision("1")}, []sliceEdit{terminating, revision("2")}, true},
		{"termination over", []sliceEdit{terminating, revision("1")}, []sliceEdit{ready, revision("2")}, true},
	} {
		old := newSlice("web", "b", []string{"10.244.1.1"}, c.old...)
		newer := newSlice("web", "a", []string{"10.244.1.1"}, c.newer...)
		for _, order := range [][]*discoveryv1.EndpointSlice{{old, newer}, {newer, old}} {
			if p, _ := webPort(order...); len(p.Endpoints) != 1 || p.Endpoints[0].Ready != c.ready {
				t.Errorf("%s: got %v, want ready %v", c.name, addrs(p), c.ready)
			}
		}
	}
	last := newSlice("web", "b", []string{"10.244.1.1"}, notReady)
	if p, _ := webPort(last, newSlice("web", "a", []string{"10.244.1.1"})); p.Endpoints[0].Ready {
		t.Error("without revision and age the slice of the last name counts, and it is not ready")
	}
}

func TestPortsAreJoinedByNameAndProtocol(t *testing.T) {
	svc := newService("web", "10.96.0.1", func(svc *corev1.Service) {
		svc.Spec.Ports = []corev1.ServicePort{
			{Name: "", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "http", Port: 81, Protocol: corev1.ProtocolUDP},
			{Name: "old", Port: 82, Protocol: corev1.ProtocolTCP},
		}
	})
	ports := func(s *discoveryv1.EndpointSlice) {
		s.Ports = []discoveryv1.EndpointPort{
			{Name: new(""), Port: new(int32(1000)), Protocol: new(corev1.ProtocolTCP)},
			{Name: new("http"), Port: new(int32(1001)), Protocol: new(corev1.ProtocolTCP)},
			{Name: new("http"), Port: new(int32(1002)), Protocol: new(corev1.ProtocolUDP)},
			{Name: nil, Port: new(int32(1003)), Protocol: new(corev1.ProtocolTCP)},
			{Name: new("old"), Port: nil, Protocol: new(corev1.ProtocolTCP)},
			{Name: new("old"), Port: new(int32(0))},
			{Name: new("http"), Port: new(int32(1004)), Protocol: new(corev1.ProtocolSCTP)},
		}
	}
	snapshot := buildQuietly(t, source.Objects{
		Services: []*corev1.Service{svc}, Slices: []*discoveryv1.EndpointSlice{newSlice("web", "a", []string{"10.244.1.1"}, ports)},
	})
	udp := tcp("web", "http")
	udp.Protocol = service.UDP
	equal(t, "unnamed", addrs(snapshot.Port(tcp("web", ""))), []string{"10.244.1.1:1000"})
	equal(t, "http/udp", addrs(snapshot.Port(udp)), []string{"10.244.1.1:1002"})
	equal(t, "old", addrs(snapshot.Port(tcp("web", "old"))), []string{})
}

func TestRenamedPortMeetsItsEndpointsInEitherOrder(t *testing.T) {
	rename := func(svc *corev1.Service) { svc.Spec.Ports[0].Name = "web" }
	renameSlice := func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name = new("web") }
	oldSvc, newSvc := newService("web", "10.96.0.1"), newService("web", "10.96.0.1", rename)
	oldSlice, newSlice := newSlice("web", "a", []string{"10.244.1.1"}), newSlice("web", "a", []string{"10.244.1.1"}, renameSlice)
	for _, c := range []struct {
		svc   *corev1.Service
		slice *discoveryv1.EndpointSlice
		want  []string
		says  string
	}{
		{oldSvc, oldSlice, []string{"10.244.1.1:8080"}, ""},
		{newSvc, oldSlice, []string{}, `its ports ["http"] match no port of Service default/web ["web"]: name them alike`},
		{oldSvc, newSlice, []string{}, `its ports ["web"] match no port of Service default/web ["http"]: name them alike`},
		{newSvc, newSlice, []string{"10.244.1.1:8080"}, ""},
	} {
		snapshot, notices := build(source.Objects{Services: []*corev1.Service{c.svc}, Slices: []*discoveryv1.EndpointSlice{c.slice}})
		equal(t, "endpoints", addrs(snapshot.Ports[0]), c.want)
		if c.says == "" {
			equal(t, "notices", notices, nil)
		} else {
			onlyNotice(t, notices, "EndpointSlice default/a", c.says)
		}
	}
}

func TestSliceThatNobodyServesIsSaidOnlyIfItIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		slice *discoveryv1.EndpointSlice
		says  string // empty: no notice
	}{
		"no such Service": {newSlice("wep", "a", []string{"10.244.1.1"}), "is of Service default/wep and is ignored: there is no Service of that name here"},
		"other protocol":  {newSlice("web", "a", []string{"10.244.1.1"}, func(s *discoveryv1.EndpointSlice) { s.Ports[0].Protocol = new(corev1.ProtocolUDP) }), `["http/UDP"] match no port of Service default/web ["http"]`},
		"no ports":        {newSlice("web", "a", []string{"10.244.1.1"}, func(s *discoveryv1.EndpointSlice) { s.Ports = nil }), `its ports [] match no port`},
		"nothing at all":  {newSlice("web", "a", nil, func(s *discoveryv1.EndpointSlice) { s.Ports = nil }), ""}, // as the control plane keeps one
		"one port of two": {newSlice("web", "a", []string{"10.244.1.1"}, func(s *discoveryv1.EndpointSlice) {
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new("x")})
		}), ""},
		"Service not served": {newSlice("sctp", "a", []string{"10.244.1.1"}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			sctp := newService("sctp", "10.96.0.2", func(svc *corev1.Service) { svc.Spec.Ports[0].Protocol = corev1.ProtocolSCTP })
			_, notices := build(source.Objects{
				Services: []*corev1.Service{newService("web", "10.96.0.1"), sctp}, Slices: []*discoveryv1.EndpointSlice{c.slice},
			})
			notices = slices.DeleteFunc(notices, func(n source.Notice) bool { return n.Object == "Service default/sctp" })
			if c.says == "" {
				equal(t, "notices", notices, nil)
			} else {
				onlyNotice(t, notices, "EndpointSlice default/a", c.says)
			}
		})
	}
}

func TestBadSliceLosesOnlyWhatIsBad(t *testing.T) {
	for name, c := range map[string]struct {
		bad    *discoveryv1.EndpointSlice
		object string
		says   string
	}{
		"loopback":       {newSlice("web", "a", []string{"127.0.0.1"}), "EndpointSlice default/a", "loopback"},
		"metadata":       {newSlice("web", "a", []string{"169.254.169.254"}), "EndpointSlice default/a", "link-local"},
		"mapped":         {newSlice("web", "a", []string{"0:0:0:0:0:ffff:7f00:1"}), "EndpointSlice default/a", "loopback"},
		"no address":     {newSlice("web", "a", []string{"pod-1\n"}), "EndpointSlice default/a", `"pod-1\n"`},
		"no addresses":   {newSlice("web", "a", []string{"x"}, func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = nil }), "EndpointSlice default/a", "without address"},
		"other family":   {newSlice("web", "a", []string{"fd00::1"}, func(s *discoveryv1.EndpointSlice) { s.AddressType = "IPv4" }), "EndpointSlice default/a", "IPv4"},
		"host names":     {newSlice("web", "a", []string{"a.example"}, func(s *discoveryv1.EndpointSlice) { s.AddressType = "FQDN" }), "EndpointSlice default/a", "FQDN"},
		"no family":      {newSlice("web", "a", []string{"10.244.1.2"}, func(s *discoveryv1.EndpointSlice) { s.AddressType = "" }), "EndpointSlice default/a", "set addressType: IPv4"},
		"port too high":  {newSlice("web", "a", []string{"10.244.1.2"}, portNumber(65536+22)), "EndpointSlice default/a", "65558"},
		"without label":  {newSlice("web", "a", []string{"10.244.1.2"}, func(s *discoveryv1.EndpointSlice) { s.Labels = nil }), "EndpointSlice default/a", "kubernetes.io/service-name"},
		"name with junk": {newSlice("web", "a\x1b[2J", []string{"::1"}), `EndpointSlice "default/a\x1b[2J"`, "loopback"},
	} {
		t.Run(name, func(t *testing.T) {
			p, notices := webPort(c.bad, newSlice("web", "good", []string{"10.244.1.1"}))
			onlyNotice(t, notices, c.object, c.says)
			equal(t, "endpoints", addrs(p), []string{"10.244.1.1:8080"})
		})
	}
}
