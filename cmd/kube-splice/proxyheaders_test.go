package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// trustOutside has the program believe the machine outside of the cluster.
const trustOutside = "--proxy-protocol-trusted-cidrs=172.20.9.0/24, fd00:172:20:9::/64"

// annotations gives a Service several of our annotations.
func annotations(pairs ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		for i := 0; i < len(pairs); i += 2 {
			s.Annotations["kube-splice.io/"+pairs[i]] = pairs[i+1]
		}
	}
}

// wantsHeaders has a Service want PROXY headers of trusted peers.
var wantsHeaders = annotations("accept-proxy-protocol", "required")

// Clients that headers name, and where they say these connected to.
const (
	farClient, farClient6 = "192.0.2.7:5555", "[2001:db8::7]:5555"
	farServer, farServer6 = "198.51.100.8:443", "[2001:db8::8]:443"
)

// headerOf returns a PROXY header of version 1 or 2, with TLVs of that many bytes.
func headerOf(t testing.TB, version byte, client, server string, tlvBytes int) string {
	t.Helper()
	tcp := func(a string) *net.TCPAddr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(a)) }
	h := proxyproto.HeaderProxyFromAddrs(version, tcp(client), tcp(server))
	if tlvBytes > 0 {
		check(t, h.SetTLVs([]proxyproto.TLV{
			{Type: proxyproto.PP2_TYPE_AUTHORITY, Value: []byte("example.com")},
			{Type: 0xEA, Value: bytes.Repeat([]byte{0xff}, tlvBytes)},
		}))
	}
	b, err := h.Format()
	check(t, err)
	return string(b)
}

// localHeader is what a load balancer's own health checks begin with.
func localHeader(family byte, rest int) string {
	b := append([]byte("\r\n\r\n\x00\r\nQUIT\n"), 0x20, family, 0, 0)
	binary.BigEndian.PutUint16(b[14:], uint16(rest))
	return string(b) + strings.Repeat("\xff", rest)
}

// collecting is a backend that tells what each client has sent to the end, and closes.
func (c *cluster) collecting(pod string) <-chan string {
	c.t.Helper()
	sent := make(chan string, 1000)
	c.backend(pod, func(conn *net.TCPConn) {
		all, err := io.ReadAll(struct{ io.Reader }{conn})
		_ = conn.Close()
		if err != nil {
			all = append(all, err.Error()...)
		}
		sent <- string(all)
	})
	return sent
}

// wantCollected waits for what a backend was sent.
func wantCollected(t testing.TB, sent <-chan string, want string) {
	t.Helper()
	select {
	case got := <-sent:
		if got != want {
			t.Errorf("the backend was sent %q, want %q", got, want)
		}
	case <-time.After(patience):
		t.Fatal("the backend is not connected to")
	}
}

// sendPieces connects, writes each piece after a pause, or, with none, once the one before
// has arrived, and ends the sending.
func sendPieces(t testing.TB, from *lab.Namespace, address string, pause time.Duration, pieces ...string) *net.TCPConn {
	t.Helper()
	conn := connect(t, from, address)
	for _, piece := range pieces {
		_, err := io.WriteString(conn, piece)
		check(t, err)
		if time.Sleep(pause); pause == 0 {
			awaitArrival(t, conn)
		}
	}
	check(t, conn.CloseWrite())
	return conn
}

// awaitArrival waits until the peer's kernel has all that was written.
func awaitArrival(t testing.TB, conn *net.TCPConn) {
	t.Helper()
	raw, err := conn.SyscallConn()
	check(t, err)
	for left := 1; left > 0; {
		var ioctlErr error
		check(t, raw.Control(func(fd uintptr) { left, ioctlErr = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }))
		check(t, ioctlErr)
	}
}

// wantClient demands what a line of the connection log says about who the client was. An
// empty client stands for the peer itself.
func wantClient(t testing.TB, r record, client string, peer net.Addr) {
	t.Helper()
	wantPeer := peer.String()
	if client == "" {
		client, wantPeer = wantPeer, ""
	}
	if r.Client != client || r.Peer != wantPeer {
		t.Errorf("logged client %q and peer %q, want %q and %q", r.Client, r.Peer, client, wantPeer)
	}
}

// theHeaders are all kinds of headers, and the client that each names.
func theHeaders(t testing.TB) []struct{ what, header, client string } {
	return []struct{ what, header, client string }{
		{"v1", headerOf(t, 1, farClient, farServer, 0), farClient},
		{"v1 of IPv6", headerOf(t, 1, farClient6, farServer6, 0), farClient6},
		{"v1 UNKNOWN", "PROXY UNKNOWN\r\n", ""},
		{"v2", headerOf(t, 2, farClient, farServer, 0), farClient},
		{"v2 with TLVs", headerOf(t, 2, farClient, farServer, 600), farClient},
		{"v2 of IPv6 with TLVs", headerOf(t, 2, farClient6, farServer6, 600), farClient6},
		{"LOCAL with bytes", localHeader(0x00, 12), ""},
		{"LOCAL of TCP4 with bytes", localHeader(0x11, 12), ""},
		{"LOCAL without bytes", localHeader(0x00, 0), ""},
		{"UNSPEC", "\r\n\r\n\x00\r\nQUIT\n\x21\x00\x00\x00", ""},
	}
}

func TestHeaderOfATrustedPeerNamesTheClientAndIsNoPayload(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	sent := c.collecting("pod-a")
	c.apply("web", newService("web", "10.96.0.10", wantsHeaders, withIPv6("fd00:10:96::10")),
		newSlice("web", []string{podA}), newSlice("web", []string{podA6}, ipv6))
	p := c.start(trustOutside)
	n := 0
	for _, h := range theHeaders(t) {
		for _, address := range []string{webAddress, "[fd00:10:96::10]:80"} {
			conn := sendPieces(t, c.Outside, address, 0, h.header+"hi")
			wantCollected(t, sent, "hi")
			n++
			r := p.records(n)[n-1]
			wantClient(t, r, h.client, conn.LocalAddr())
			if r.Up != 2 || r.Original != address || r.Close != "client-closed" {
				t.Errorf("%s: logged %+v, want 2 bytes up to %s", h.what, r, address)
			}
		}
	}
	p.finish(n)
}

func TestHeaderMayComeInPieces(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	sent := c.collecting("pod-a")
	c.apply("web", newService("web", "10.96.0.10", wantsHeaders), newSlice("web", []string{podA}))
	p := c.start(trustOutside, "--proxy-protocol-header-timeout", "1m")
	n := 0
	logged := func(conn *net.TCPConn, what string) {
		t.Helper()
		wantCollected(t, sent, "hi")
		n++
		if r := p.records(n)[n-1]; r.Client != farClient || r.Peer != conn.LocalAddr().String() || r.Up != 2 {
			t.Errorf("%s: logged %+v", what, r)
		}
	}
	for _, header := range []string{headerOf(t, 1, farClient, farServer, 0), headerOf(t, 2, farClient, farServer, 600)} {
		what := fmt.Sprintf("%.5q of %d bytes", header, len(header))
		logged(sendPieces(t, c.Outside, webAddress, 0, header+"hi"), what+" with payload")
		logged(sendPieces(t, c.Outside, webAddress, 0, header, "hi"), what+" alone")
		for _, cut := range []int{1, 5, 12, 14, 16, len(header) - 1} {
			logged(sendPieces(t, c.Outside, webAddress, 0, header[:cut], header[cut:]+"hi"), fmt.Sprint(what, " cut after ", cut))
		}
		logged(sendPieces(t, c.Outside, webAddress, 5*time.Millisecond, strings.Split(header+"hi", "")...), what+" byte by byte")
	}
}

func TestOnlyTrustedPeersSpeakForOthers(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	sent := c.collecting("pod-a")
	c.apply("web", newService("web", "10.96.0.10", wantsHeaders), newSlice("web", []string{podA}))
	c.apply("plain", newService("plain", "10.96.0.20"), newSlice("plain", []string{podA}))
	p := c.start(trustOutside)
	n := 0
	for _, h := range theHeaders(t) {
		for _, from := range []struct {
			machine *lab.Namespace
			address string
		}{{c.client(), webAddress}, {c.Node, webAddress}, {c.Outside, "10.96.0.20:80"}} {
			conn := sendPieces(t, from.machine, from.address, 0, h.header+"hi")
			wantCollected(t, sent, h.header+"hi")
			n++
			wantClient(t, p.records(n)[n-1], "", conn.LocalAddr())
		}
	}
	p.finish(n)
}

func TestTrustedPeerWithoutAHeaderIsClosedAndNoEndpointIsDialled(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	accepted := c.accepting("pod-a")
	c.apply("web", newService("web", "10.96.0.10", wantsHeaders), newSlice("web", []string{podA}))
	p := c.start(trustOutside, "--proxy-protocol-header-timeout", "1s")
	n := 0
	ended := func(conn *net.TCPConn, what, says string) {
		t.Helper()
		wantReset(t, what, conn, 0)
		n++
		r := p.records(n)[n-1]
		if r.Close != "bad-header" || r.Attempts != 0 || r.Backend != "" || r.Original != webAddress || !strings.Contains(r.Error, says) {
			t.Errorf("%s: logged %+v, want bad-header and %q", what, r, says)
		}
		wantClient(t, r, "", conn.LocalAddr())
	}
	for _, what := range []string{
		"GET / HTTP/1.0\r\n\r\n", "PROXY TCP4 192.0.2.7 198.51.100.8 5555 443\n", "PROXY TCP4 192.0.2.7 198.51.100.8 99999 443\r\n",
		"PROXY TCP4 2001:db8::7 2001:db8::8 5555 443\r\n", "PROXY " + strings.Repeat("x", 200), headerOf(t, 2, farClient, farServer, 5000),
	} {
		conn := connect(t, c.Outside, webAddress)
		_, err := io.WriteString(conn, what)
		check(t, err)
		ended(conn, fmt.Sprintf("%.20q", what), "PROXY header")
	}
	watch := lab.StartStopwatch()
	ended(connect(t, c.Outside, webAddress), "silent", "not complete in time")
	if took := watch.Elapsed(); took > 3*time.Second {
		t.Errorf("a silent peer was closed after %v", took)
	}
	half := connect(t, c.Outside, webAddress)
	_, err := io.WriteString(half, "PROXY TCP4 192.0")
	check(t, err)
	ended(half, "half a header", "not complete in time")
	ended(sendPieces(t, c.Outside, webAddress, 0, ""), "nothing", "closed before it was complete")
	awaitSeries(t, c, fmt.Sprintf(`kubesplice_connections_refused_total{close="bad-header"} %d`, n))
	select {
	case <-accepted:
		t.Error("an endpoint was dialled")
	default:
	}
	p.finish(n)
}
