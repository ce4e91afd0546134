package service_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kube-splice/kube-splice/service"
)

func TestScopesAndClientsReadAsUsersWriteThem(t *testing.T) {
	for got, want := range map[string]string{
		service.Cluster.String(): "Cluster", service.Local.String(): "Local",
		service.Anyone.String(): "anyone", service.Inside.String(): "inside", service.Outside.String(): "outside",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if service.Cluster >= service.Scopes || service.Local >= service.Scopes {
		t.Error("a scope is no index of an array of Scopes")
	}
}

func TestListenerOfLocalEndpointsIsToldByItsName(t *testing.T) {
	n := service.Name{Namespace: "shop", Service: "web", Port: "http", Protocol: service.TCP, Family: service.IPv4}
	for scope, want := range map[service.Scope]string{service.Cluster: "shop/web:http", service.Local: "shop/web:http (local)"} {
		if got := (service.ListenerName{Name: n, Scope: scope}).String(); got != want {
			t.Errorf("%v: %q, want %q", scope, got, want)
		}
	}
}

func TestTrafficPoliciesSplitPortals(t *testing.T) {
	const local, cluster = service.Local, service.Cluster
	for name, c := range map[string]struct {
		internal, external service.Scope
		want               []string
	}{
		"Cluster": {cluster, cluster, []string{
			"clusterIP 10.96.0.10 anyone Cluster", "loadBalancer 192.0.2.2 anyone Cluster",
			"externalIP 192.0.2.1 anyone Cluster", "nodePort invalid IP anyone Cluster"}},
		"internal Local": {local, cluster, []string{
			"clusterIP 10.96.0.10 anyone Local", "loadBalancer 192.0.2.2 anyone Cluster",
			"externalIP 192.0.2.1 anyone Cluster", "nodePort invalid IP anyone Cluster"}},
		"external Local": {cluster, local, []string{
			"clusterIP 10.96.0.10 anyone Cluster",
			"loadBalancer 192.0.2.2 inside Cluster", "loadBalancer 192.0.2.2 outside Local",
			"externalIP 192.0.2.1 inside Cluster", "externalIP 192.0.2.1 outside Local",
			"nodePort invalid IP inside Cluster", "nodePort invalid IP outside Local"}},
		"both Local": {local, local, []string{
			"clusterIP 10.96.0.10 anyone Local",
			"loadBalancer 192.0.2.2 inside Cluster", "loadBalancer 192.0.2.2 outside Local",
			"externalIP 192.0.2.1 inside Cluster", "externalIP 192.0.2.1 outside Local",
			"nodePort invalid IP inside Cluster", "nodePort invalid IP outside Local"}},
	} {
		p := newPort()
		p.Internal, p.External = c.internal, c.external
		var got []string
		for _, portal := range p.Portals() {
			got = append(got, portal.Kind.String()+" "+portal.Addr.String()+" "+portal.Clients.String()+" "+portal.Scope.String())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got %q\nwant %q", name, got, c.want)
		}
	}
}

func TestEligibleEndpointsOfAScope(t *testing.T) {
	numbered := func(last byte, e service.Endpoint) service.Endpoint {
		e.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, last}), 8080)
		return e
	}
	local := numbered(1, service.Endpoint{Ready: true, Serving: true, Local: true})
	localReserved := numbered(2, service.Endpoint{Ready: true, Serving: true, Local: true, Reserved: true})
	localDraining := numbered(3, service.Endpoint{Serving: true, Terminating: true, Local: true})
	localGone := numbered(4, service.Endpoint{Terminating: true, Local: true})
	remote := numbered(5, service.Endpoint{Ready: true, Serving: true})
	remoteReserved := numbered(6, service.Endpoint{Ready: true, Serving: true, Reserved: true})
	remoteDraining := numbered(7, service.Endpoint{Serving: true, Terminating: true})
	list := func(e ...service.Endpoint) []service.Endpoint { return e }
	for name, c := range map[string]struct{ all, cluster, local []service.Endpoint }{
		"here and there":             {list(local, remote), list(local, remote), list(local)},
		"there only":                 {list(remote, localGone), list(remote), nil},
		"reserved ones":              {list(local, localReserved, remoteReserved), list(local), list(local, localReserved)},
		"reserved, here":             {list(localReserved, remote), list(remote), list(localReserved)},
		"draining here, ready there": {list(localDraining, remote, remoteDraining), list(remote), list(localDraining)},
		"draining everywhere":        {list(localDraining, localGone, remoteDraining), list(localDraining, remoteDraining), list(localDraining)},
		"draining there":             {list(localGone, remoteDraining), list(remoteDraining), nil},
		"none":                       {nil, nil, nil},
	} {
		p := newPort()
		p.Endpoints = c.all
		for scope, want := range map[service.Scope][]service.Endpoint{service.Cluster: c.cluster, service.Local: c.local} {
			if got := p.HasEligible(scope); got != (len(want) > 0) {
				t.Errorf("%s: some are eligible in %v: %t, want %t", name, scope, got, len(want) > 0)
			}
		}
		if got := p.Eligible(service.Cluster); !slices.Equal(got, c.cluster) {
			t.Errorf("%s, Cluster: %v, want %v", name, got, c.cluster)
		}
		if got := p.Eligible(service.Local); !slices.Equal(got, c.local) {
			t.Errorf("%s, Local: %v, want %v", name, got, c.local)
		}
		if got := p.Eligible(service.Local); len(got) > 0 {
			got[0].Addr = netip.AddrPort{}
			if !p.Endpoints[0].Addr.IsValid() {
				t.Errorf("%s: the result is not the caller's", name)
			}
		}
	}
}
