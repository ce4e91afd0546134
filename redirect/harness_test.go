package redirect_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"github.com/kube-splice/kube-splice/lab"
	"github.com/kube-splice/kube-splice/redirect"
	"github.com/kube-splice/kube-splice/service"
)

func TestMain(m *testing.M) {
	if err := lab.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// programs is a folder, first in PATH, that leads the plain names of the iptables
// programs to those of one kernel interface, as a distribution's choice would.
type programs struct {
	t       *testing.T
	backend string
	dir     string
}

// forEachBackend runs a test with the programs of each kernel interface.
func forEachBackend(t *testing.T, test func(t *testing.T, p *programs)) {
	for _, backend := range []string{"nft", "legacy"} {
		t.Run(backend, func(t *testing.T) { test(t, choose(t, backend)) })
	}
}

func choose(t *testing.T, backend string) *programs {
	t.Helper()
	p := &programs{t: t, backend: backend, dir: t.TempDir()}
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			if err := os.Symlink(p.real(name+suffix), filepath.Join(p.dir, name+suffix)); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("PATH", p.dir+":"+os.Getenv("PATH"))
	return p
}

// real returns the path of a program of the chosen kernel interface.
func (p *programs) real(name string) string {
	p.t.Helper()
	base, suffix, _ := strings.Cut(name, "-")
	name = base + "-" + p.backend
	if suffix != "" {
		name += "-" + suffix
	}
	path, err := exec.LookPath(name)
	if err != nil {
		p.t.Fatalf("the tests need the iptables package: %v", err)
	}
	return path
}

// wrap puts a shell script in the place of a program; in it, $REAL is the program
// itself and $DIR a folder for notes.
func (p *programs) wrap(name, script string) {
	p.t.Helper()
	text := fmt.Sprintf("#!/bin/sh\nREAL=%s\nDIR=%s\n%s\n", p.real(name), p.dir, script)
	path := filepath.Join(p.dir, name)
	if err := os.Remove(path); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		p.t.Fatal(err)
	}
}

// note returns what scripts wrote to a file in $DIR.
func (p *programs) note(name string) string {
	text, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil && !os.IsNotExist(err) {
		p.t.Fatal(err)
	}
	return string(text)
}

// node is a network namespace with rules in it.
type node struct {
	t *testing.T
	*lab.Namespace
}

// The addresses of the interface that newNode makes.
var (
	nodeIP   = netip.MustParseAddr("192.0.2.1")
	nodeIPv6 = netip.MustParseAddr("2001:db8::1")
)

// newNode makes a namespace with one interface and no neighbors.
func newNode(t *testing.T) *node {
	t.Helper()
	space, err := lab.NewNamespace("node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := space.Close(); err != nil {
			t.Error(err)
		}
	})
	n := &node{t, space}
	n.do(func() error {
		eth := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}
		if err := netlink.LinkAdd(eth); err != nil {
			return err
		}
		return netlink.LinkSetUp(eth)
	})
	n.addAddress(nodeIP)
	n.addAddress(nodeIPv6)
	return n
}

func (n *node) addAddress(addr netip.Addr) { n.t.Helper(); n.do(changeAddress(netlink.AddrAdd, addr)) }

func (n *node) removeAddress(addr netip.Addr) {
	n.t.Helper()
	n.do(changeAddress(netlink.AddrDel, addr))
}

func changeAddress(change func(netlink.Link, *netlink.Addr) error, addr netip.Addr) func() error {
	return func() error {
		eth, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		parsed, err := netlink.ParseAddr(netip.PrefixFrom(addr, addr.BitLen()-8).String())
		if err != nil {
			return err
		}
		if addr.Is6() {
			parsed.Flags = 0x02 // IFA_F_NODAD: usable at once
		}
		return change(eth, parsed)
	}
}

func (n *node) do(f func() error) {
	n.t.Helper()
	if err := n.Do(f); err != nil {
		n.t.Fatal(err)
	}
}

// run runs a program in the node, words separated by blanks.
func (n *node) run(command string) string {
	n.t.Helper()
	words := strings.Fields(command)
	out, err := n.Output(exec.Command(words[0], words[1:]...))
	if err != nil {
		n.t.Fatal(err)
	}
	return string(out)
}

// open is NewIPTables in the node.
func (n *node) open(cfg redirect.Config) *redirect.IPTables {
	n.t.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	var r *redirect.IPTables
	n.do(func() (err error) {
		r, err = redirect.NewIPTables(n.t.Context(), cfg)
		return err
	})
	return r
}

func (n *node) sync(r *redirect.IPTables, want redirect.Rules) {
	n.t.Helper()
	if err := n.trySync(n.t.Context(), r, want); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) trySync(ctx context.Context, r *redirect.IPTables, want redirect.Rules) error {
	return n.Do(func() error { return r.Sync(ctx, want) })
}

func (n *node) intact(r *redirect.IPTables) (ok bool) {
	n.t.Helper()
	n.do(func() (err error) {
		ok, err = r.Intact(n.t.Context())
		return err
	})
	return ok
}

// cleanup is Cleanup in the node.
func (n *node) cleanup() (removed []string) {
	n.t.Helper()
	n.do(func() (err error) {
		removed, err = redirect.Cleanup(n.t.Context(), redirect.Config{Log: slog.New(slog.DiscardHandler)})
		return err
	})
	return removed
}

// saved returns all rules of both families, less the dates and counters that
// change by themselves.
func (n *node) saved() string {
	n.t.Helper()
	return n.table("iptables-save") + n.table("ip6tables-save")
}

var (
	remarks  = regexp.MustCompile(`(?m)^#.*\n`)
	counters = regexp.MustCompile(`\[\d+:\d+\]`)
)

// table runs a save command and removes what changes by itself.
func (n *node) table(command string) string {
	n.t.Helper()
	text := remarks.ReplaceAllString(n.run(command), "")
	return counters.ReplaceAllString(text, "[0:0]")
}

// binding makes a Binding of the family of the portal's address, IPv4 if none.
// The listener's address is unspecified.
func binding(name string, proto service.Protocol, kind service.Kind, addr string, number, listener uint16) service.Binding {
	b := service.Binding{
		Portal:   service.Portal{Kind: kind, Number: number},
		Listener: netip.AddrPortFrom(netip.IPv4Unspecified(), listener),
	}
	b.Name.Protocol, b.Name.Family = proto, service.IPv4
	b.Name.Namespace, b.Name.Service, _ = strings.Cut(name, "/")
	b.Name.Service, b.Name.Port, _ = strings.Cut(b.Name.Service, ":")
	if addr != "" {
		b.Portal.Addr = netip.MustParseAddr(addr)
		b.Name.Family = service.FamilyOf(b.Portal.Addr)
	}
	return b
}

// inIPv6 makes a nodePort binding one of IPv6.
func inIPv6(b service.Binding) service.Binding {
	b.Name.Family = service.IPv6
	b.Listener = netip.AddrPortFrom(netip.IPv6Unspecified(), b.Listener.Port())
	return b
}

func nodePorts(t *testing.T, entries ...string) redirect.NodePortAddresses {
	t.Helper()
	a, err := redirect.ParseNodePortAddresses(entries)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func rules(bindings ...service.Binding) redirect.Rules {
	return redirect.Rules{Bindings: bindings}
}

// journal is a logger whose lines a test can read.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) logger() *slog.Logger { return slog.New(slog.NewTextHandler(j, nil)) }

// count returns how many lines contain the text.
func (j *journal) count(text string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for line := range strings.Lines(j.text.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}
