package service_test

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/service"
)

func TestNamesReadAsTheyDidInTheHistoricalKubeProxy(t *testing.T) {
	n := service.Name{Namespace: "shop", Service: "web", Port: "http", Protocol: service.TCP, Family: service.IPv4}
	if n.String() != "shop/web:http" {
		t.Errorf("a named port reads %q", n)
	}
	if n.Port = ""; n.String() != "shop/web" {
		t.Errorf("an unnamed port reads %q", n)
	}
}

func TestNamesDifferInEveryField(t *testing.T) {
	base := service.Name{Namespace: "a", Service: "a", Port: "a", Protocol: service.TCP, Family: service.IPv4}
	for i, change := range []func(*service.Name){
		func(n *service.Name) { n.Namespace = "b" },
		func(n *service.Name) { n.Service = "b" },
		func(n *service.Name) { n.Port = "b" },
		func(n *service.Name) { n.Protocol = service.UDP },
		func(n *service.Name) { n.Family = service.IPv6 },
	} {
		other := base
		change(&other)
		if base.Compare(other) >= 0 || other.Compare(base) <= 0 || base.Compare(base) != 0 {
			t.Errorf("change %d is not seen in the order of names", i)
		}
	}
}

func TestOnlyAddressesOfPodsAreEndpoints(t *testing.T) {
	for text, fine := range map[string]bool{
		"10.244.1.11": true, "192.0.2.1": true, "fd00::1": true, "2001:db8::1": true, "::ffff:10.0.0.1": true,
		"127.0.0.1": false, "127.255.0.1": false, "::1": false, "::ffff:127.0.0.1": false,
		"0.0.0.0": false, "::": false, "169.254.169.254": false, "fe80::1": false,
		"224.0.0.1": false, "239.1.2.3": false, "ff02::1": false, "255.255.255.255": false,
	} {
		if err := service.CheckEndpoint(netip.MustParseAddr(text)); (err == nil) != fine {
			t.Errorf("%s: %v", text, err)
		}
	}
	if service.CheckEndpoint(netip.Addr{}) == nil {
		t.Error("no address at all is an endpoint")
	}
}

func newPort() *service.Port {
	return &service.Port{
		Name:   service.Name{Namespace: "shop", Service: "web", Protocol: service.TCP, Family: service.IPv4},
		Number: 80, ClusterIP: netip.MustParseAddr("10.96.0.10"), NodePort: 30080,
		ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("192.0.2.2")},
		Policy: service.Policy{Affinity: time.Hour},
		Endpoints: []service.Endpoint{
			{Addr: netip.MustParseAddrPort("10.244.1.11:8080"), Ready: true},
			{Addr: netip.MustParseAddrPort("10.244.1.12:8080")},
		},
	}
}

func TestEqualPortsAreEqualInEverything(t *testing.T) {
	if !newPort().Equal(newPort()) {
		t.Error("two ports that say the same are not equal")
	}
	changes := map[string]func(*service.Port){
		"Name":                func(p *service.Port) { p.Name.Port = "x" },
		"Number":              func(p *service.Port) { p.Number++ },
		"ClusterIP":           func(p *service.Port) { p.ClusterIP = p.ClusterIP.Next() },
		"NodePort":            func(p *service.Port) { p.NodePort++ },
		"HealthCheckNodePort": func(p *service.Port) { p.HealthCheckNodePort++ },
		"ExternalIPs":         func(p *service.Port) { p.ExternalIPs = nil },
		"LoadBalancerIPs":     func(p *service.Port) { p.LoadBalancerIPs[0] = p.ClusterIP },
		"Internal":            func(p *service.Port) { p.Internal = service.Local },
		"External":            func(p *service.Port) { p.External = service.Local },
		"SourceRanges":        func(p *service.Port) { p.SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} },
		"NodePortRanges":      func(p *service.Port) { p.NodePortRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} },
		"Endpoints":           func(p *service.Port) { p.Endpoints = p.Endpoints[:1] },

		"Policy.Balancer":       func(p *service.Port) { p.Policy.Balancer = "random" },
		"Policy.Affinity":       func(p *service.Port) { p.Policy.Affinity++ },
		"Policy.IdleTimeout":    func(p *service.Port) { p.Policy.IdleTimeout++ },
		"Policy.LogOff":         func(p *service.Port) { p.Policy.LogOff = true },
		"Policy.Preserve":       func(p *service.Port) { p.Policy.Preserve = service.PreserveAll },
		"Policy.AcceptProxy":    func(p *service.Port) { p.Policy.AcceptProxy = true },
		"Policy.SendProxy":      func(p *service.Port) { p.Policy.SendProxy++ },
		"Policy.VPCEndpoint":    func(p *service.Port) { p.Policy.VPCEndpoint = "x" },
		"Endpoints.Addr":        func(p *service.Port) { p.Endpoints[1].Addr = netip.AddrPort{} },
		"Endpoints.Ready":       func(p *service.Port) { p.Endpoints[1].Ready = true },
		"Endpoints.Serving":     func(p *service.Port) { p.Endpoints[1].Serving = true },
		"Endpoints.Terminating": func(p *service.Port) { p.Endpoints[1].Terminating = true },
		"Endpoints.Node":        func(p *service.Port) { p.Endpoints[1].Node = "x" },
		"Endpoints.Zone":        func(p *service.Port) { p.Endpoints[1].Zone = "x" },
		"Endpoints.Local":       func(p *service.Port) { p.Endpoints[1].Local = true },
		"Endpoints.Reserved":    func(p *service.Port) { p.Endpoints[1].Reserved = true },
	}
	for prefix, of := range map[string]reflect.Type{
		"": reflect.TypeFor[service.Port](), "Policy.": reflect.TypeFor[service.Policy](), "Endpoints.": reflect.TypeFor[service.Endpoint](),
	} {
		for _, field := range reflect.VisibleFields(of) {
			if _, changed := changes[prefix+field.Name]; !changed && field.Name != "Policy" {
				t.Errorf("%s%s is not in this table", prefix, field.Name)
			}
		}
	}
	for field, change := range changes {
		other := newPort()
		change(other)
		if newPort().Equal(other) || other.Equal(newPort()) {
			t.Errorf("%s makes no difference", field)
		}
	}
}

func TestPortalsAreEveryAddressClientsMayUse(t *testing.T) {
	var got []string
	for _, p := range newPort().Portals() {
		got = append(got, p.Kind.String()+" "+netip.AddrPortFrom(p.Addr, p.Number).String())
	}
	want := []string{"clusterIP 10.96.0.10:80", "loadBalancer 192.0.2.2:80", "externalIP 192.0.2.1:80", "nodePort invalid AddrPort"}
	if !slices.Equal(got, want) {
		t.Errorf("portals %q, want %q", got, want)
	}
}

func TestEligibleEndpoints(t *testing.T) {
	endpoint := func(last byte, ready, serving, terminating bool) service.Endpoint {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, last}), 8080)
		return service.Endpoint{Addr: addr, Ready: ready, Serving: serving, Terminating: terminating}
	}
	ready := endpoint(1, true, true, false)
	readyAndTerminating := endpoint(2, true, true, true) // publishNotReadyAddresses
	notReady := endpoint(3, false, true, false)
	draining := endpoint(4, false, true, true)
	gone := endpoint(5, false, false, true)
	for name, c := range map[string]struct{ all, want []service.Endpoint }{
		"none":                                   {nil, nil},
		"ready ones only":                        {[]service.Endpoint{ready, notReady, draining, gone}, []service.Endpoint{ready}},
		"ready though terminating":               {[]service.Endpoint{readyAndTerminating, draining}, []service.Endpoint{readyAndTerminating}},
		"draining ones when none is ready":       {[]service.Endpoint{notReady, draining, gone}, []service.Endpoint{draining}},
		"nobody when none serves":                {[]service.Endpoint{gone}, nil},
		"not one that is not ready for a reason": {[]service.Endpoint{notReady}, nil},
	} {
		p := newPort()
		p.Endpoints = c.all
		if got := p.Eligible(service.Cluster); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestSnapshotFindsPortsByName(t *testing.T) {
	a, b := newPort(), newPort()
	b.Name.Service = "x"
	snap := &service.Snapshot{Ports: []*service.Port{a, b}}
	if snap.Port(a.Name) != a || snap.Port(b.Name) != b || snap.Port(service.Name{}) != nil {
		t.Error("ports are not found by their names")
	}
}
