package proxy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
)

// udpServer answers every datagram with its name and the datagram.
func udpServer(t testing.TB, name string) string {
	t.Helper()
	return udpServerAt(t, name, "10.88.0.11:0")
}

func udpServerAt(t testing.TB, name, address string) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", address)
	check(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo([]byte(name+" "+string(buf[:n])), from)
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	return conn.LocalAddr().String()
}

func newUDPPort(name string, endpoints ...string) *service.Port {
	p := newPort(name, endpoints...)
	p.Name.Protocol = service.UDP
	return p
}

// udpClient is a client that hears nobody but whom it asks.
func udpClient(t testing.TB, from, at string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
	conn, err := dialer.Dial("udp", at)
	check(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func askUDP(c net.Conn, text string, wait time.Duration) (string, error) {
	if _, err := c.Write([]byte(text)); err != nil {
		return "", err
	}
	_ = c.SetReadDeadline(time.Now().Add(wait))
	buf := make([]byte, 1<<16)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

func wantUDP(t testing.TB, c net.Conn, want string) {
	t.Helper()
	if got, err := askUDP(c, "?", 20*time.Second); got != want+" ?" {
		t.Fatalf("%v was answered %q (%v), want by %s", c.RemoteAddr(), got, err, want)
	}
}

func wantUDPRefused(t testing.TB, c net.Conn) {
	t.Helper()
	if got, err := askUDP(c, "?", 20*time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v answered %q (%v), want refused", c.RemoteAddr(), got, err)
	}
}

func TestOneServicePortMayBeOfBothProtocols(t *testing.T) {
	tcp, _ := echo(t, "tcp", "10.88.0.11:0")
	r := newRig(t)
	web, dns := newPort("dns", tcp), newUDPPort("dns", udpServer(t, "udp"))
	at := r.open(web, dns)
	conn, flow := connect(t, at[0]), udpClient(t, inside, at[1])
	wantUDP(t, flow, "udp")
	r.open(web)
	r.Prune()
	if rec := r.record(); rec.Close != proxy.Removed || rec.Name != dns.Name {
		t.Errorf("the flow ended as %+v", rec)
	}
	wantUDPRefused(t, udpClient(t, inside, at[1]))
	conn.roundTrip(t)
}

func TestFlowsFollowTheEndpoints(t *testing.T) {
	a, b := udpServer(t, "a"), udpServer(t, "b")
	r := newRig(t)
	client := udpClient(t, inside, r.open(newUDPPort("dns", a))[0])
	wantUDP(t, client, "a")
	r.open(newUDPPort("dns", b))
	wantUDP(t, client, "b")
	r.open(newUDPPort("dns"))
	wantUDPRefused(t, client)
	r.open(newUDPPort("dns", a))
	wantUDP(t, client, "a")

	terminating := newUDPPort("dns", a, b)
	terminating.Endpoints[0].Ready, terminating.Endpoints[0].Terminating = false, true
	r.open(terminating)
	wantUDP(t, client, "a") // it still serves those it has
	wantUDP(t, udpClient(t, inside, client.RemoteAddr().String()), "b")
}

func TestFlowIsRecordedWhenItEnds(t *testing.T) {
	r := newRig(t, func(cfg *proxy.Config) { cfg.UDPTimeout = 100 * time.Millisecond })
	server := udpServer(t, "a")
	client := udpClient(t, inside, r.open(newUDPPort("dns", server))[0])
	wantUDP(t, client, "a")
	rec := r.record()
	want := proxy.Record{
		Name: newUDPPort("dns").Name, Client: netip.MustParseAddrPort(client.LocalAddr().String()), Original: rec.Original,
		Backend: netip.MustParseAddrPort(server), Attempts: 1, Up: 1, Down: 3, DatagramsUp: 1, DatagramsDown: 1,
		ClientIP: proxy.Hidden, Close: proxy.IdleLimit, Duration: rec.Duration, Ended: rec.Ended,
	}
	if rec != want || rec.Duration < 100*time.Millisecond || rec.Ended.IsZero() || rec.Original.String() != client.RemoteAddr().String() {
		t.Errorf("recorded %+v\nwant %+v", rec, want)
	}
	var text bytes.Buffer
	log := proxy.NewConnectionLog(&text, true, slog.New(slog.DiscardHandler))
	log.Record(rec)
	log.Close(context.Background())
	if !strings.Contains(text.String(), `"bytes_down":3,"datagrams_up":1,"datagrams_down":1,"close":"idle"`) {
		t.Errorf("logged %s", text.String())
	}
	if counts := r.Services()[0]; counts.Accepted != 1 || counts.Active != 0 || counts.Up != 1 || counts.Down != 3 {
		t.Errorf("counted %+v", counts)
	}
}

func TestFlowGoesToAnotherEndpointWhenItsOwnRefuses(t *testing.T) {
	gone := []string{closedUDP(t), closedUDP(t), closedUDP(t)}
	r := newRig(t)
	p := newUDPPort("dns", append(gone, udpServer(t, "a"))...)
	p.Policy.Balancer = "source-hash" // which would choose the same one again
	client := udpClient(t, inside, r.open(p)[0])
	wantUDP(t, client, "a")
	wantUDP(t, client, "a")
	alone := newUDPPort("dns", gone[0])
	r.open(alone) // which fails, and may be back at any time
	before := r.Counts().FailedTries
	_, _ = client.Write([]byte("?"))
	for deadline := time.Now().Add(20 * time.Second); r.Counts().FailedTries == before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no failed try was counted")
		}
	}
	back, err := net.ListenPacket("udp", gone[0])
	check(t, err)
	defer back.Close()
	_, err = client.Write([]byte("again"))
	check(t, err)
	check(t, back.SetReadDeadline(time.Now().Add(20*time.Second)))
	buf := make([]byte, 10)
	if n, _, err := back.ReadFrom(buf); string(buf[:n]) != "again" {
		t.Errorf("the endpoint that is back received %q (%v)", buf[:n], err)
	}
}

func TestClientsOfUDPAreAdmittedByWhereTheyAsked(t *testing.T) {
	r := newRuledRig(t)
	p := newUDPPort("dns", udpServer(t, "a"))
	p.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr(loadBalancer)}
	p.SourceRanges = []netip.Prefix{netip.MustParsePrefix(inside + "/32")}
	opened := r.openRuled(&service.Snapshot{Ports: []*service.Port{p}})
	for _, at := range []string{clusterIP, loadBalancer} {
		wantUDP(t, udpClient(t, inside, at+":80"), "a")
	}
	wantUDP(t, udpClient(t, outside, clusterIP+":80"), "a")
	for at, why := range map[string]proxy.Close{
		loadBalancer + ":80": proxy.Denied,
		fmt.Sprintf("10.88.0.11:%d", opened.Bindings[0].Listener.Port()): proxy.RefusedDirect,
	} {
		if got, err := askUDP(udpClient(t, outside, at), "?", 300*time.Millisecond); err == nil {
			t.Errorf("%s was answered %q", at, got)
		}
		if rec := r.record(); rec.Close != why || rec.Original.String() != at {
			t.Errorf("a client of %s was recorded as %+v, want %s", at, rec, why)
		}
	}
	if c := r.Counts(); c.Denied != 1 || c.RefusedDirect != 1 {
		t.Errorf("counted %+v", c)
	}
}

func TestNodePortsOfBothProtocolsAreHeld(t *testing.T) {
	r := newRuledRig(t)
	tcp, udp := newPort("dns"), newUDPPort("dns")
	tcp.NodePort, udp.NodePort = 30053, 30053
	r.openRuled(&service.Snapshot{Ports: []*service.Port{tcp, udp}})
	for _, at := range []string{":30053", "10.88.0.11:30053", "127.0.0.1:30053"} {
		if c, err := net.ListenPacket("udp4", at); err == nil {
			_ = c.Close()
			t.Errorf("another program could take the UDP node port at %s", at)
		}
	}
	flush(t)
	wantUDPRefused(t, udpClient(t, inside, "10.88.0.11:30053")) // a stray client
	r.openRuled(&service.Snapshot{Ports: []*service.Port{tcp}})
	c, err := net.ListenPacket("udp4", ":30053")
	check(t, err)
	check(t, c.Close())
	if c, err := net.Listen("tcp4", ":30053"); err == nil {
		_ = c.Close()
		t.Error("another program could take the TCP node port")
	}
}
