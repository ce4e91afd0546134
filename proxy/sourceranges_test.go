package proxy_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
)

// withRanges returns a copy of p that has every kind of portal and whose
// load-balancer address admits only these.
func withRanges(p *service.Port, ranges ...string) *service.Port {
	q := withPolicies(p, cluster, cluster, 0)
	for _, text := range ranges {
		q.SourceRanges = append(q.SourceRanges, netip.MustParsePrefix(text))
	}
	return q
}

func snapshotOf(p *service.Port, nodeIPs ...string) *service.Snapshot {
	snap := &service.Snapshot{Ports: []*service.Port{p}}
	for _, ip := range nodeIPs {
		snap.NodeIPs = append(snap.NodeIPs, netip.MustParseAddr(ip))
	}
	return snap
}

// wantAsked connects and checks whether the client is admitted.
func wantAsked(t testing.TB, from, at string, admitted bool) {
	t.Helper()
	c, err := ask(from, at)
	if err == nil {
		_ = c.Close()
	}
	if admitted && err != nil || !admitted && !isReset(err) {
		t.Errorf("from %s to %s: %v, want admitted: %v, else reset", from, at, err, admitted)
	}
}

func TestClientOutsideTheSourceRangesIsResetAndNoEndpointIsDialled(t *testing.T) {
	ln, err := net.Listen("tcp", "10.88.0.11:0")
	check(t, err)
	var dialled atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			dialled.Add(1)
			_, _ = io.WriteString(conn, "a\n")
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-done })
	r := newRuledRig(t)
	r.openRuled(snapshotOf(withRanges(newPort("web", ln.Addr().String()), "10.88.0.12/32")))

	wantAsked(t, outside, loadBalancer+":80", false)
	rec := r.record()
	if rec.Close != proxy.Denied || rec.Attempts != 0 || rec.Backend.IsValid() || rec.Err == nil || rec.Original.String() != loadBalancer+":80" {
		t.Errorf("record %+v, want denied without a try", rec)
	}
	if c := r.Counts(); c.Denied != 1 || c.RefusedDirect != 0 || c.Active != 0 {
		t.Errorf("counts %+v, want one denied", c)
	}
	var line logText
	log := proxy.NewConnectionLog(&line, false, slog.New(slog.DiscardHandler))
	log.Record(rec)
	log.Close(context.Background())
	if text := line.String(); !strings.Contains(text, "close=denied") || !strings.Contains(text, "client="+outside+":") {
		t.Errorf("logged as %s", text)
	}
	wantAsked(t, inside, loadBalancer+":80", true)
	if n := dialled.Load(); n != 1 {
		t.Errorf("the endpoint was dialled %d times, want once, for the client that was admitted", n)
	}
}

func TestSourceRangesGuardTheLoadBalancersAddressOnly(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	r := newRuledRig(t)
	for _, external := range []service.Scope{cluster, local} {
		p := withRanges(newPort("web", a), "192.0.2.0/24")
		p.External, p.Endpoints[0].Local = external, true
		r.openRuled(snapshotOf(p))
		for _, from := range []string{inside, outside} {
			wantAsked(t, from, loadBalancer+":80", false)
			for _, at := range []string{clusterIP + ":80", externalIP + ":80", "10.88.0.11:30080"} {
				wantAsked(t, from, at, true)
			}
		}
	}
}

func TestAddressThatIsAlsoAnExternalIPIsGuarded(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	r := newRuledRig(t)
	p := withRanges(newPort("web", a), "192.0.2.0/24")
	p.ExternalIPs = p.LoadBalancerIPs
	r.openRuled(snapshotOf(p))
	wantAsked(t, inside, loadBalancer+":80", false)
}

func TestSourceRangesEditedLiveHoldForNewConnections(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	r := newRuledRig(t)
	web := newPort("web", a)
	r.openRuled(snapshotOf(withRanges(web)))
	held, err := ask(outside, loadBalancer+":80")
	check(t, err)
	defer func() { _ = held.Close() }()
	for _, edit := range []struct {
		ranges          []string
		inside, outside bool
	}{
		{[]string{"10.88.0.12/32"}, true, false},
		{[]string{"10.88.0.13/32"}, false, true},
		{[]string{"192.0.2.0/24", "10.88.0.12/31"}, true, true},
		{[]string{"192.0.2.0/24", "2001:db8::/32"}, false, false},
		{[]string{"0.0.0.0/0"}, true, true},
		{nil, true, true},
	} {
		r.Open(snapshotOf(withRanges(web, edit.ranges...))) // no rule changes
		wantAsked(t, inside, loadBalancer+":80", edit.inside)
		wantAsked(t, outside, loadBalancer+":80", edit.outside)
		held.roundTrip(t)
	}
}

// On a node that has the load balancer's address itself, programs ask for it with it
// as their source.
func TestNodeReachesALoadBalancersAddressOfItsOwnIfARangeHasTheNode(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	r := newRuledRig(t)
	guarded := withRanges(newPort("web", a), "10.88.0.12/32")
	r.openRuled(snapshotOf(guarded))
	for _, c := range []struct {
		nodeIPs  []string
		admitted bool
	}{
		{nil, false},
		{[]string{"10.88.0.11"}, false},
		{[]string{"fd00:88::11", "10.88.0.12"}, true},
		{[]string{"10.88.0.11"}, false},
	} {
		r.Open(snapshotOf(guarded, c.nodeIPs...)) // the Service port is the same
		wantAsked(t, loadBalancer, loadBalancer+":80", c.admitted)
		wantAsked(t, inside, loadBalancer+":80", true)
		wantAsked(t, outside, loadBalancer+":80", false)
	}
}

func TestSourceRangesOfIPv6(t *testing.T) {
	a, _ := echo(t, "a", "[fd00:88::11]:0")
	const vip = "fd00:96::50"
	for _, addr := range []string{vip, "fd00:88::12"} {
		check(t, addAddress("lo", addr+"/128"))
		t.Cleanup(func() { check(t, removeAddress("lo", addr+"/128")) })
	}
	r := newRig(t, ruled)
	p := newPort("web", a)
	p.Name.Family, p.ClusterIP = service.IPv6, netip.MustParseAddr("fd00:96::10")
	p.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr(vip)}
	p.SourceRanges = []netip.Prefix{netip.MustParsePrefix("fd00:88::12/128")}
	opened := r.Open(snapshotOf(p))
	t.Cleanup(func() { nat(t, "ip6tables", "-F", "OUTPUT") })
	nat(t, "ip6tables", "-A", "OUTPUT", "-p", "tcp", "-d", vip,
		"-j", "DNAT", "--to-destination", "[fd00:88::11]:"+itoa(opened.Bindings[0].Listener.Port()))
	wantAsked(t, "fd00:88::12", "["+vip+"]:80", true)
	wantAsked(t, "fd00:88::11", "["+vip+"]:80", false)
}

func TestSourceRangesAreNotJudgedWithoutRules(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	r := newRig(t)
	connect(t, r.open(withRanges(newPort("web", a), "192.0.2.0/24"))[0]).roundTrip(t)
}
