package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/lab"
	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/proxy/relay"
	"github.com/kube-splice/kube-splice/service"
)

// The tests run in a network namespace that has the addresses 10.88.0.11 to .13
// for backends, and a network 10.99.0.0/24 from which nothing ever answers.
func TestMain(m *testing.M) {
	err := lab.Isolate()
	if err == nil {
		err = addAddresses()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the tests need a network namespace:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func addAddresses() error {
	if _, err := netlink.LinkByName("silent"); err == nil {
		return nil // a process that tests in parallel, as fuzzing does, has made them
	}
	silent := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "silent"}, PeerName: "drop"}
	if err := netlink.LinkAdd(silent); err != nil {
		return err
	}
	drop, err := netlink.LinkByName("drop")
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetUp(silent), netlink.LinkSetUp(drop),
		addAddress("silent", "10.99.0.1/24"), silence(silent, "10.99.0.7"), silence(silent, "10.99.0.8"),
		addAddress("lo", "10.88.0.11/32"), addAddress("lo", "10.88.0.12/32"), addAddress("lo", "10.88.0.13/32"),
		addAddress("lo", "fd00:88::11/128"))
}

// silence makes the kernel send packets for an address to a machine that does not
// exist.
func silence(link netlink.Link, address string) error {
	return netlink.NeighAdd(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
		IP: net.ParseIP(address), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 99},
	})
}

func addAddress(link, cidr string) error    { return changeAddress(netlink.AddrAdd, link, cidr) }
func removeAddress(link, cidr string) error { return changeAddress(netlink.AddrDel, link, cidr) }

func changeAddress(change func(netlink.Link, *netlink.Addr) error, link, cidr string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(cidr)
	if err != nil {
		return err
	}
	if addr.IP.To4() == nil {
		addr.Flags = unix.IFA_F_NODAD // else it cannot be used for a second
	}
	if err := change(l, addr); err != nil {
		return err
	}
	return lab.AwaitAddresses()
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// onCopier says that the tests are to use the reference engine (make test runs them on both).
func onCopier() bool { return os.Getenv("KUBE_SPLICE_RELAY") == "copy" }

// rig is a Proxy with what it says and records.
type rig struct {
	*proxy.Proxy
	t       *testing.T
	records chan proxy.Record
	log     logText
}

// newRig returns a Proxy that serves clients directly, unless edit says otherwise.
func newRig(t *testing.T, edit ...func(*proxy.Config)) *rig {
	t.Helper()
	r := &rig{t: t, records: make(chan proxy.Record, 1000)}
	cfg := proxy.Config{
		Direct: true, Record: func(rec proxy.Record) { r.records <- rec },
		Log: slog.New(slog.NewTextHandler(&r.log, nil)),
	}
	for _, e := range edit {
		e(&cfg)
	}
	if cfg.Engine == nil && !onCopier() {
		loops, err := relay.NewLoops(2)
		check(t, err)
		cfg.Engine = loops
	}
	r.Proxy = proxy.New(cfg)
	t.Cleanup(func() {
		at, cancel := context.WithCancel(context.Background())
		cancel()
		r.Shutdown(at)
	})
	return r
}

// open opens a Snapshot of the ports and returns the listener of each.
func (r *rig) open(ports ...*service.Port) []string {
	r.t.Helper()
	opened := r.Open(&service.Snapshot{Ports: ports})
	if opened.Failed != 0 {
		r.t.Fatalf("%d ports could not be opened: %s", opened.Failed, r.log.String())
	}
	var listeners []string
	for _, p := range ports {
		listeners = append(listeners, listenerOf(r.t, opened, p))
	}
	return listeners
}

func listenerOf(t testing.TB, opened proxy.Opened, p *service.Port) string {
	t.Helper()
	for _, b := range opened.Bindings {
		if b.Name == p.Name {
			return fmt.Sprintf("10.88.0.11:%d", b.Listener.Port())
		}
	}
	t.Fatalf("%v has no binding", p.Name)
	return ""
}

// record waits for the next record.
func (r *rig) record() proxy.Record {
	r.t.Helper()
	select {
	case rec := <-r.records:
		return rec
	case <-time.After(20 * time.Second):
		r.t.Fatal("no record of the connection")
		panic("unreachable")
	}
}

// logText keeps a log.
type logText struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logText) count(text string) int { return strings.Count(l.String(), text) }

// newPort returns an IPv4 Service port with ready endpoints.
func newPort(name string, endpoints ...string) *service.Port {
	p := &service.Port{
		Name:   service.Name{Namespace: "default", Service: name, Port: "http", Protocol: service.TCP, Family: service.IPv4},
		Number: 80, ClusterIP: netip.MustParseAddr("10.96.0.10"),
	}
	for _, e := range endpoints {
		p.Endpoints = append(p.Endpoints, service.Endpoint{Addr: netip.MustParseAddrPort(e), Ready: true, Serving: true})
	}
	return p
}

// echo serves at an address: it says its name and then returns every line.
func echo(t testing.TB, name, address string) (addr string, stop func()) {
	t.Helper()
	ln, err := net.Listen("tcp", address)
	check(t, err)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer func() { _ = conn.Close() }()
				_, _ = io.WriteString(conn, name+"\n")
				_, _ = io.Copy(conn, conn)
			})
		}
	})
	stop = sync.OnceFunc(func() { _ = ln.Close() })
	t.Cleanup(func() { stop(); conns.Wait() })
	return ln.Addr().String(), stop
}

// client is a connection to an echo server through the proxy.
type client struct {
	net.Conn
	lines *bufio.Reader
	name  string // the server's
}

func connect(t testing.TB, address string) *client {
	t.Helper()
	c, err := tryConnect(address)
	check(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func tryConnect(address string) (*client, error) {
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return nil, err
	}
	return greeted(conn)
}

// greeted waits for the name that an echo server says.
func greeted(conn net.Conn) (*client, error) {
	var err error
	c := &client{Conn: conn, lines: bufio.NewReader(conn)}
	_ = conn.SetDeadline(time.Now().Add(15 * time.Second))
	c.name, err = c.lines.ReadString('\n')
	c.name = strings.TrimSpace(c.name)
	if err != nil {
		_ = conn.Close()
	}
	return c, err
}

func (c *client) roundTrip(t testing.TB) {
	t.Helper()
	_, err := io.WriteString(c, "hello\n")
	check(t, err)
	if line, err := c.lines.ReadString('\n'); line != "hello\n" {
		t.Fatalf("got %q back (%v), want hello", line, err)
	}
}

func wantRefused(t testing.TB, address string) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, 2*time.Second)
	if err == nil {
		_ = conn.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connecting to %s: %v, want refused", address, err)
	}
}

func isReset(err error) bool { return errors.Is(err, syscall.ECONNRESET) }

func wantReset(t testing.TB, address string) {
	t.Helper()
	c, err := tryConnect(address)
	if err == nil {
		_ = c.Close()
	}
	if !isReset(err) {
		t.Errorf("connection to %s: %v, want reset", address, err)
	}
}
