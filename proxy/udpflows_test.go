package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
)

// closedUDP returns an address at which nobody listens.
func closedUDP(t testing.TB) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "10.88.0.11:0")
	check(t, err)
	check(t, conn.Close())
	return conn.LocalAddr().String()
}

func TestFlowFindsTheOnlyEndpointThatAnswers(t *testing.T) {
	r := newRig(t, func(cfg *proxy.Config) { cfg.Balancer = "source-hash" })
	at := r.open(newUDPPort("dns", closedUDP(t), closedUDP(t), udpServer(t, "a"), closedUDP(t)))[0]
	for i := range 12 { // to each, another endpoint comes first
		wantUDP(t, udpClient(t, fmt.Sprintf("127.0.0.%d", i+1), at), "a")
	}
}

func TestAffinityHoldsForFlows(t *testing.T) {
	r := newRig(t)
	p := newUDPPort("dns", udpServer(t, "a"), udpServer(t, "b"), udpServer(t, "c"))
	p.Policy.Affinity = time.Hour
	at := r.open(p)[0]
	first, err := askUDP(udpClient(t, inside, at), "?", 20*time.Second)
	check(t, err)
	for range 5 {
		if again, err := askUDP(udpClient(t, inside, at), "?", 20*time.Second); again != first {
			t.Errorf("answered %q (%v), and before %q", again, err, first)
		}
	}
	if s := r.Services()[0]; s.AffinityRecords != 1 || s.Active != 6 {
		t.Errorf("counted %+v", s)
	}
}

func TestFlowsCountAsConnectionsOfTheirEndpoint(t *testing.T) {
	r := newRig(t, func(cfg *proxy.Config) { cfg.Balancer = "least-connections" })
	p := newUDPPort("dns", udpServer(t, "a"))
	at := r.open(p)[0]
	for range 3 {
		wantUDP(t, udpClient(t, inside, at), "a")
	}
	p2 := newUDPPort("dns", p.Endpoints[0].Addr.String(), udpServer(t, "b"))
	r.open(p2)
	for range 3 {
		wantUDP(t, udpClient(t, inside, at), "b")
	}
}

func TestFlowsThatHaveEndedCountNoMore(t *testing.T) {
	r := newRig(t, func(cfg *proxy.Config) { cfg.Balancer = "least-connections" })
	p := newUDPPort("dns", udpServer(t, "a"))
	p.Policy.IdleTimeout = 50 * time.Millisecond
	at := r.open(p)[0]
	for range 3 {
		wantUDP(t, udpClient(t, inside, at), "a")
	}
	for range 3 {
		r.record()
	}
	r.open(newUDPPort("dns", p.Endpoints[0].Addr.String(), udpServer(t, "b")))
	answers := map[string]bool{}
	for range 2 {
		answer, err := askUDP(udpClient(t, inside, at), "?", 20*time.Second)
		check(t, err)
		answers[answer] = true
	}
	if len(answers) != 2 {
		t.Errorf("two clients were answered by %v only", answers)
	}
}

func TestFlowsAreServedUntilConnectionsHaveEndedAndHoldUpNobody(t *testing.T) {
	tcp, _ := echo(t, "tcp", "10.88.0.11:0")
	r := newRig(t)
	at := r.open(newPort("web", tcp), newUDPPort("dns", udpServer(t, "a")))
	conn, flow := connect(t, at[0]), udpClient(t, inside, at[1])
	wantUDP(t, flow, "a")
	ended := make(chan struct{})
	go func() { r.Shutdown(context.Background()); close(ended) }()
	for {
		c, err := net.Dial("tcp", at[0])
		if err != nil {
			break // it drains
		}
		_ = c.Close()
	}
	conn.roundTrip(t)
	wantUDP(t, flow, "a")
	wantUDP(t, udpClient(t, inside, at[1]), "a")
	check(t, conn.Close())
	<-ended
	var last proxy.Record
	for last.Name.Protocol != service.UDP {
		last = r.record()
	}
	if last.Close != proxy.Shutdown {
		t.Errorf("the flow ended as %+v", last)
	}
	wantUDPRefused(t, flow)
}

func TestOwnListenersAreNoEndpointsOfTheirProtocol(t *testing.T) {
	r := newRig(t)
	tcp, udp := newPort("web"), newUDPPort("dns", udpServer(t, "a"))
	at := r.open(tcp, udp)
	loop := newUDPPort("loop", at[1])
	if got, err := askUDP(udpClient(t, inside, r.open(tcp, udp, loop)[2]), "?", 300*time.Millisecond); err == nil {
		t.Errorf("answered %q by way of another listener of the proxy", got)
	}
	if rec := r.record(); rec.Close != proxy.NoEndpoints || rec.Attempts != 0 {
		t.Errorf("recorded %+v", rec)
	}
	r.open(tcp, newUDPPort("dns", udpServerAt(t, "same", at[0])))
	wantUDP(t, udpClient(t, inside, at[1]), "same")
}

func TestFlowsAndConnectionsLeaveEachOtherDescriptors(t *testing.T) {
	tcp, _ := echo(t, "tcp", "10.88.0.11:0")
	undo := limitDescriptors(t, 200)
	r := newRig(t)
	undo() // the Proxy goes by the limit it began with
	at := r.open(newPort("web", tcp), newUDPPort("dns", udpServer(t, "a")))
	const share = 75 // half of what there is without what is kept back
	for range 3 * share {
		wantUDP(t, udpClient(t, inside, at[1]), "a")
	}
	if f := r.FlowCounts(); f.Active > share || f.Active < share/2 || f.Engine.Evicted != f.Accepted-f.Active {
		t.Errorf("counted %+v", f)
	}
	connect(t, at[0]).roundTrip(t)
	for range 60 { // more than there is room for
		conn, err := net.Dial("tcp", at[0])
		check(t, err)
		t.Cleanup(func() { _ = conn.Close() })
	}
	for r.log.count("short of descriptors") == 0 { // one waits now
		time.Sleep(time.Millisecond)
	}
	each := int64(2) // a connection holds two sockets, and with the reference engine pipes too
	if onCopier() {
		each = 6
	}
	if n := r.Counts().Active; n > (200-share)/each {
		t.Errorf("%d connections take the descriptors of flows", n)
	}
	wantUDP(t, udpClient(t, inside, at[1]), "a")
}

func TestMostFlowsAreAsConfigured(t *testing.T) {
	r := newRig(t, func(cfg *proxy.Config) { cfg.MaxFlows = 2 })
	at := r.open(newUDPPort("dns", udpServer(t, "a")))[0]
	oldest := udpClient(t, inside, at)
	wantUDP(t, oldest, "a")
	for range 2 {
		wantUDP(t, udpClient(t, inside, at), "a")
	}
	if rec := r.record(); rec.Close != proxy.Evicted || rec.Client.String() != oldest.LocalAddr().String() {
		t.Errorf("recorded %+v, want the oldest flow evicted", rec)
	}
}

func TestIdleTimeoutOfAServiceIsStrongerForItsFlows(t *testing.T) {
	r := newRig(t, func(cfg *proxy.Config) { cfg.UDPTimeout = time.Hour })
	p := newUDPPort("dns", udpServer(t, "a"))
	p.Policy.IdleTimeout = 50 * time.Millisecond
	wantUDP(t, udpClient(t, inside, r.open(p)[0]), "a")
	if rec := r.record(); rec.Close != proxy.IdleLimit || rec.Duration < 50*time.Millisecond {
		t.Errorf("recorded %+v", rec)
	}
}

// Without CAP_NET_ADMIN conntrack says nothing, so clients cannot be admitted.
func TestUDPIsNotServedWhereConntrackCannotBeAsked(t *testing.T) {
	tcp, _ := echo(t, "tcp", "10.88.0.11:0")
	r := newRuledRig(t)
	snap := &service.Snapshot{Ports: []*service.Port{newPort("web", tcp), newUDPPort("dns", udpServer(t, "a"))}}
	withoutNetAdmin(t, func() {
		for range 2 {
			if opened := r.Open(snap); opened.Failed != 1 || len(opened.Bindings) != 1 || opened.Bindings[0].Name != snap.Ports[0].Name {
				t.Errorf("opened %+v", opened)
			}
		}
	})
	if n := r.log.count("CAP_NET_ADMIN"); n != 1 {
		t.Errorf("said %d times: %s", n, r.log.String())
	}
	r.openRuled(snap)
	wantUDP(t, udpClient(t, inside, clusterIP+":80"), "a")
}

// withoutNetAdmin runs do in a thread without that capability.
func withoutNetAdmin(t *testing.T, do func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and leave the thread to end with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		err := unix.Capget(&header, &data[0])
		data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		if err = errors.Join(err, unix.Capset(&header, &data[0])); err == nil {
			do()
		}
		done <- err
	}()
	check(t, <-done)
}

func TestUDPListenersNeedAnAddressOfTheNode(t *testing.T) {
	r := newRig(t, func(cfg *proxy.Config) { cfg.BindAddress = netip.MustParseAddr("10.77.7.7") })
	for range 2 {
		if opened := r.Open(&service.Snapshot{Ports: []*service.Port{newUDPPort("dns")}}); opened.Failed != 1 {
			t.Errorf("opened %+v", opened)
		}
	}
	if n := r.log.count("no address of this node (--bind-address)"); n != 1 {
		t.Errorf("said %d times: %s", n, r.log.String())
	}
}

func TestUDPPortThatAnotherProgramSharesIsTaken(t *testing.T) {
	sharing := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) { check(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)) })
	}}
	other, err := sharing.ListenPacket(context.Background(), "udp4", ":30053")
	check(t, err)
	defer func() { _ = other.Close() }()
	r := newRig(t, ruled)
	p := newUDPPort("dns")
	p.NodePort = 30053
	if opened := r.Open(&service.Snapshot{Ports: []*service.Port{p}}); opened.Failed != 1 || r.log.count("another program") != 1 {
		t.Errorf("opened %+v: %s", opened, r.log.String())
	}
}
