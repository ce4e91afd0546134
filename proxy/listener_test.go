package proxy_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
)

func TestServicePortsAreServedIndependently(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	b, _ := echo(t, "b", "10.88.0.12:0")
	r := newRig(t)
	one, other := newPort("redis", a), newPort("redis", b)
	other.Name.Namespace = "other"
	at := r.open(one, other)
	for range 5 {
		if c := connect(t, at[0]); c.name != "a" {
			t.Errorf("default/redis was answered by %s", c.name)
		}
		if c := connect(t, at[1]); c.name != "b" {
			t.Errorf("other/redis was answered by %s", c.name)
		}
	}
}

func TestIPv6ServicePortIsServedByItsFamily(t *testing.T) {
	a, _ := echo(t, "a", "[fd00:88::11]:0")
	r := newRig(t)
	p := newPort("web", a)
	p.Name.Family = service.IPv6
	opened := r.Open(&service.Snapshot{Ports: []*service.Port{p}})
	if len(opened.Bindings) != 1 || !opened.Bindings[0].Listener.Addr().Is6() {
		t.Fatalf("bindings %v, want one on an IPv6 address", opened.Bindings)
	}
	port := opened.Bindings[0].Listener.Port()
	connect(t, net.JoinHostPort("fd00:88::11", itoa(port))).roundTrip(t)
	wantRefused(t, net.JoinHostPort("10.88.0.11", itoa(port)))
}

func TestListenerWithoutEndpointsRefusesAndKeepsItsPort(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	r := newRig(t)
	at := r.open(newPort("web"))[0]
	wantRefused(t, at)

	r.open(newPort("web", a))
	held := connect(t, at)
	held.roundTrip(t)

	if again := r.open(newPort("web")); again[0] != at {
		t.Errorf("the listener moved from %s to %s", at, again[0])
	}
	wantRefused(t, at)
	if ln, err := net.Listen("tcp", at); err == nil {
		_ = ln.Close()
		t.Error("another program could take a parked listener's port")
	}
	held.roundTrip(t)

	for range 3 {
		r.open(newPort("web", a))
		connect(t, at).roundTrip(t)
		r.open(newPort("web"))
		wantRefused(t, at)
	}
}

func TestEndpointThatIsNotReadyGetsNoConnection(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	b, _ := echo(t, "b", "10.88.0.12:0")
	r := newRig(t)
	p := newPort("web", a, b)
	p.Endpoints[0].Ready = false
	at := r.open(p)[0]
	for range 6 {
		if c := connect(t, at); c.name != "b" {
			t.Errorf("answered by %s, which is not ready", c.name)
		}
	}
}

func TestRemovedServiceRefusesAtOnceAndFreesItsPortAfterwards(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	r := newRig(t)
	at := r.open(newPort("web", a))[0]
	held := connect(t, at)

	r.open()
	wantRefused(t, at)
	if ln, err := net.Listen("tcp", at); err == nil {
		_ = ln.Close()
		t.Error("the port was free while rules may still have led to it")
	}
	r.Prune()
	ln, err := net.Listen("tcp", at)
	check(t, err)
	_ = ln.Close()
	held.roundTrip(t)
}

func TestServiceThatComesBackBeforeItIsPrunedKeepsItsListener(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	r := newRig(t)
	p := newPort("web", a)
	at := r.open(p)[0]
	r.open()
	if again := r.open(p)[0]; again != at {
		t.Errorf("the listener moved from %s to %s", at, again)
	}
	r.Prune()
	connect(t, at).roundTrip(t)
}

func TestShutdownLetsConnectionsFinish(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	r := newRig(t)
	at := r.open(newPort("web", a))[0]
	held := connect(t, at)
	ended := make(chan struct{})
	go func() { r.Shutdown(context.Background()); close(ended) }()
	for {
		if conn, err := net.Dial("tcp", at); err != nil {
			break
		} else {
			_ = conn.Close()
		}
	}
	held.roundTrip(t)
	_ = held.Close()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("Shutdown waits though the last connection has ended")
	}
}

func TestShutdownResetsWhatDoesNotFinish(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	r := newRig(t)
	held := connect(t, r.open(newPort("web", a))[0])
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	r.Shutdown(ctx)
	if rec := r.record(); rec.Close != proxy.Shutdown {
		t.Errorf("recorded as %s, want shutdown", rec.Close)
	}
	if _, err := held.lines.ReadByte(); err == nil || !strings.Contains(err.Error(), "reset") {
		t.Errorf("the client read %v, want reset", err)
	}
}
