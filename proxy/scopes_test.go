package proxy_test

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
)

// withPolicies returns a copy of p that has every kind of portal, these traffic
// policies, and its first endpoints on this node.
func withPolicies(p *service.Port, internal, external service.Scope, local int) *service.Port {
	q := *p
	q.ExternalIPs = []netip.Addr{netip.MustParseAddr(externalIP)}
	q.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr(loadBalancer)}
	q.NodePort = 30080
	q.Internal, q.External = internal, external
	q.Endpoints = append([]service.Endpoint(nil), p.Endpoints...)
	for i := range q.Endpoints {
		q.Endpoints[i].Local = i < local
	}
	return &q
}

// scopedListener returns where the listener of a scope is.
func scopedListener(t testing.TB, opened proxy.Opened, scope service.Scope) string {
	t.Helper()
	for _, b := range opened.Bindings {
		if b.Portal.Scope == scope {
			return fmt.Sprintf("10.88.0.11:%d", b.Listener.Port())
		}
	}
	t.Fatalf("no binding of the scope %v", scope)
	return ""
}

func (r *rig) openPolicies(p *service.Port) proxy.Opened {
	r.t.Helper()
	opened := r.Open(&service.Snapshot{Ports: []*service.Port{p}})
	if opened.Failed != 0 {
		r.t.Fatalf("%d could not be opened: %s", opened.Failed, r.log.String())
	}
	return opened
}

const cluster, local = service.Cluster, service.Local

func TestServicePortHasOneListenerForEachScopeThatItsPortalsNeed(t *testing.T) {
	all := newPort("web")
	bare := func(internal, external service.Scope) *service.Port {
		p := newPort("web")
		p.Internal, p.External = internal, external
		return p
	}
	for _, c := range []struct {
		name string
		port *service.Port
		want uint16
	}{
		{"both Cluster", withPolicies(all, cluster, cluster, 0), 1},
		{"external Local", withPolicies(all, cluster, local, 0), 2},
		{"internal Local", withPolicies(all, local, cluster, 0), 2},
		{"both Local", withPolicies(all, local, local, 0), 2},
		{"external Local, but a clusterIP only", bare(cluster, local), 1},
		{"internal Local and a clusterIP only", bare(local, cluster), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, inRange(20500, 20500+c.want-1)) // one more would fail
			listeners := map[service.Scope]netip.AddrPort{}
			for _, b := range r.openPolicies(c.port).Bindings {
				if at, seen := listeners[b.Portal.Scope]; seen && at != b.Listener {
					t.Errorf("the scope %v has the listeners %v and %v", b.Portal.Scope, at, b.Listener)
				}
				listeners[b.Portal.Scope] = b.Listener
			}
			if len(listeners) != int(c.want) || c.want == 2 && listeners[cluster] == listeners[local] {
				t.Errorf("listeners %v, want %d", listeners, c.want)
			}
		})
	}
}

func TestClientsGetTheEndpointsOfTheirPolicy(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	b, _ := echo(t, "b", "10.88.0.12:0")
	r := newRuledRig(t)
	web := newPort("web", a, b)
	for _, c := range []struct {
		internal, external                  service.Scope
		byClusterIP, fromInside, fromBeyond []string
	}{
		{cluster, cluster, []string{"a", "b"}, []string{"a", "b"}, []string{"a", "b"}},
		{cluster, local, []string{"a", "b"}, []string{"a", "b"}, []string{"a"}},
		{local, cluster, []string{"a"}, []string{"a", "b"}, []string{"a", "b"}},
		{local, local, []string{"a"}, []string{"a", "b"}, []string{"a"}},
	} {
		r.openRuled(&service.Snapshot{Ports: []*service.Port{withPolicies(web, c.internal, c.external, 1)}})
		for _, from := range []string{inside, outside} {
			wantAnswers(t, from, clusterIP+":80", c.byClusterIP...)
		}
		for _, at := range []string{loadBalancer + ":80", externalIP + ":80", "10.88.0.11:30080"} {
			wantAnswers(t, inside, at, c.fromInside...)
			wantAnswers(t, outside, at, c.fromBeyond...)
		}
	}
}

func TestScopeWithoutEndpointsRefusesUntilItHasSome(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	b, _ := echo(t, "b", "10.88.0.12:0")
	r := newRig(t)
	web := newPort("web", a, b)
	opened := r.openPolicies(withPolicies(web, cluster, local, 0))
	here, anywhere := scopedListener(t, opened, local), scopedListener(t, opened, cluster)
	for range 3 {
		r.openPolicies(withPolicies(web, cluster, local, 0))
		wantRefused(t, here)
		connect(t, anywhere).roundTrip(t)
		r.openPolicies(withPolicies(web, cluster, local, 1))
		if n := names(t, here); n["a"] != 8 {
			t.Errorf("local clients were answered by %v, want the endpoint on this node", n)
		}
	}
	notReady := withPolicies(web, cluster, local, 1)
	notReady.Endpoints[0].Ready = false
	r.openPolicies(notReady)
	wantRefused(t, here)
	if c := connect(t, anywhere); c.name != "b" {
		t.Errorf("answered by %s, which is not ready", c.name)
	}
}

func TestPolicyEditsKeepEstablishedConnections(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	r := newRig(t)
	web := newPort("web", a)
	edit := func(policy service.Scope) string {
		p := *web
		p.Internal = policy
		return scopedListener(t, r.openPolicies(localEndpoints(&p)), policy)
	}
	var held []*client
	before := edit(cluster)
	for _, policy := range []service.Scope{local, cluster, local} {
		held = append(held, connect(t, before))
		at := edit(policy)
		connect(t, before).roundTrip(t) // while rules lead to it
		if ln, err := net.Listen("tcp", before); err == nil {
			_ = ln.Close()
			t.Error("the port was free while rules may still have led to it")
		}
		r.Prune()
		ln, err := net.Listen("tcp", before)
		check(t, err)
		_ = ln.Close()
		for _, c := range append(held, connect(t, at)) {
			c.roundTrip(t)
		}
		before = at
	}
}

// localEndpoints puts all endpoints of p on this node.
func localEndpoints(p *service.Port) *service.Port {
	p.Endpoints = append([]service.Endpoint(nil), p.Endpoints...)
	for i := range p.Endpoints {
		p.Endpoints[i].Local = true
	}
	return p
}

func TestScopeThatComesBackBeforeItIsPrunedKeepsItsListener(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	r := newRig(t)
	both, one := withPolicies(newPort("web", a), cluster, local, 1), withPolicies(newPort("web", a), cluster, cluster, 1)
	at := scopedListener(t, r.openPolicies(both), local)
	r.openPolicies(one)
	connect(t, at).roundTrip(t)
	if again := scopedListener(t, r.openPolicies(both), local); again != at {
		t.Errorf("the listener moved from %s to %s", at, again)
	}
	r.Prune()
	connect(t, at).roundTrip(t)
}

// Rules that lead clients to the other listener of a Service, as they do for a moment
// after a traffic policy was edited, give nobody endpoints that its policy keeps from it.
func TestClientsGetTheEndpointsOfTheirPolicyAtWhicheverListener(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	b, _ := echo(t, "b", "10.88.0.12:0")
	r := newRuledRig(t)
	opened := r.openRuled(&service.Snapshot{Ports: []*service.Port{withPolicies(newPort("web", a, b), local, cluster, 1)}})
	nat(t, "iptables", "-F", "OUTPUT")
	for _, wrong := range []struct {
		asked, at string
		scope     service.Scope
		want      []string
	}{
		{clusterIP, scopedListener(t, opened, cluster), local, []string{"a"}},
		{loadBalancer, scopedListener(t, opened, local), cluster, []string{"a", "b"}},
	} {
		nat(t, "iptables", "-A", "OUTPUT", "-p", "tcp", "-d", wrong.asked, "-j", "DNAT", "--to-destination", wrong.at)
		wantAnswers(t, inside, wrong.asked+":80", wrong.want...)
		for range 6 { // as often as it was asked
			if rec := r.record(); rec.Scope != wrong.scope {
				t.Errorf("the record of a client of %s has the scope %v, want %v", wrong.asked, rec.Scope, wrong.scope)
			}
		}
	}
}

func TestKeptPortsAreKeptByScope(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	web := withPolicies(newPort("web", a), cluster, local, 1)
	kept := map[service.ListenerName]uint16{{Name: web.Name}: 20602, {Name: web.Name, Scope: local}: 20601}
	for range 10 { // other ports are random
		r := newRig(t, inRange(20600, 20603), func(c *proxy.Config) { c.KeepPorts = kept })
		opened := r.openPolicies(web)
		if c, l := scopedListener(t, opened, cluster), scopedListener(t, opened, local); c != "10.88.0.11:20602" || l != "10.88.0.11:20601" {
			t.Fatalf("listening at %s and %s, want the ports they had", c, l)
		}
		r.open()
		r.Prune()
	}
}

func TestPortIsNotKeptForAScopeNoLongerNeeded(t *testing.T) {
	web := newPort("web")
	r := newRig(t, inRange(20610, 20610), func(c *proxy.Config) {
		c.KeepPorts = map[service.ListenerName]uint16{{Name: web.Name, Scope: local}: 20610}
	})
	r.open(web) // would fail
}

func TestClientStaysWithItsEndpointWhicheverListenerItComesTo(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	b, _ := echo(t, "b", "10.88.0.12:0")
	c, _ := echo(t, "c", "10.88.0.13:0")
	r := newRig(t)
	p := withPolicies(newPort("web", a, b, c), cluster, local, 2)
	p.Policy.Affinity = time.Hour
	opened := r.openPolicies(p)
	first := connect(t, scopedListener(t, opened, local)).name
	if n := names(t, scopedListener(t, opened, cluster)); n[first] != 8 {
		t.Errorf("answered by %v, want %s as before", n, first)
	}
	if counts, _ := r.countsOf(p); counts.AffinityRecords != 1 {
		t.Errorf("%d clients are remembered, want one", counts.AffinityRecords)
	}
}

func TestCountsOfAServicePortAreThoseOfAllItsListeners(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	b, _ := echo(t, "b", "10.88.0.12:0")
	r := newRig(t)
	p := withPolicies(newPort("web", a, b), cluster, local, 1)
	opened := r.openPolicies(p)
	for _, scope := range []service.Scope{cluster, local} {
		_ = connect(t, scopedListener(t, opened, scope)).Close()
		if rec := r.record(); rec.Scope != scope {
			t.Errorf("recorded with the scope %v, want %v", rec.Scope, scope)
		}
	}
	connect(t, scopedListener(t, opened, local))
	for _, policy := range []service.Scope{local, cluster} { // and when a listener has been closed
		r.openPolicies(withPolicies(newPort("web", a, b), cluster, policy, 1))
		r.Prune()
		if n := len(r.Services()); n != 1 {
			t.Errorf("%d Service ports are counted, want one", n)
		}
		got, _ := r.countsOf(p)
		want := proxy.ServiceCounts{Name: p.Name, Accepted: 3, Active: 1, Down: 4, Endpoints: 2}
		if got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	onlyLocal := newPort("web", a, b)
	onlyLocal.Internal, onlyLocal.Endpoints[1].Local = local, true
	r.openPolicies(onlyLocal)
	if got, _ := r.countsOf(p); got.Endpoints != 1 {
		t.Errorf("%d endpoints of a Service port with local ones only, want 1", got.Endpoints)
	}
}

func TestListenersOfAllScopesLeaveDescriptorsForConnections(t *testing.T) {
	defer limitDescriptors(t, 200)()
	r := newRig(t)
	var ports []*service.Port
	for i := range 100 {
		p := newPort(fmt.Sprintf("web%d", i))
		p.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		p.External = local
		ports = append(ports, p)
	}
	listeners := map[uint16]bool{}
	opened := r.Open(&service.Snapshot{Ports: ports})
	for _, b := range opened.Bindings {
		listeners[b.Listener.Port()] = true
	}
	if opened.Failed == 0 || len(listeners) < 50 || len(listeners) > 150 {
		t.Errorf("%d listeners are open and %d failed of 200, with 200 descriptors", len(listeners), opened.Failed)
	}
	if n := r.log.count("too few descriptors"); n != 1 {
		t.Errorf("said %d times, want once", n)
	}
}

// limitDescriptors lowers the process's limit until it is undone.
func limitDescriptors(t *testing.T, n uint64) (undo func()) {
	t.Helper()
	var before syscall.Rlimit
	check(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	low := before
	low.Cur = n
	check(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low))
	return func() { check(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before)) }
}
