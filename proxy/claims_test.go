package proxy_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
)

// ruled makes a Proxy that expects rules to lead clients to it.
func ruled(c *proxy.Config) { c.Direct = false }

func withNodePort(p *service.Port, port uint16) *service.Port {
	p.NodePort = port
	return p
}

// nodePorts returns which node ports may get rules.
func nodePorts(opened proxy.Opened) map[uint16]string {
	ports := map[uint16]string{}
	for _, b := range opened.Bindings {
		if b.Portal.Kind == service.NodePort {
			ports[b.Portal.Number] = b.Name.Service
		}
	}
	return ports
}

func TestNodePortIsHeldAndRefusesStrayClients(t *testing.T) {
	r := newRig(t, ruled)
	r.open(withNodePort(newPort("web"), 30080))
	if ln, err := net.Listen("tcp", ":30080"); err == nil {
		_ = ln.Close()
		t.Error("another program could take a Service's node port")
	}
	wantRefused(t, "10.88.0.11:30080")
	r.open()
	r.Prune()
	ln, err := net.Listen("tcp", ":30080")
	check(t, err)
	_ = ln.Close()
}

func TestNodePortOfAnotherProgramFailsAloneUntilItIsFree(t *testing.T) {
	other, err := net.Listen("tcp", "10.88.0.12:30080")
	check(t, err)
	defer func() { _ = other.Close() }()
	r := newRig(t, ruled)
	snap := &service.Snapshot{Ports: []*service.Port{withNodePort(newPort("taken"), 30080), withNodePort(newPort("web"), 30081)}}
	var opened proxy.Opened
	for range 3 {
		opened = r.Open(snap)
	}
	if ports := nodePorts(opened); len(ports) != 1 || ports[30081] != "web" {
		t.Errorf("node ports %v may get rules, want only web's", ports)
	}
	if opened.Failed != 1 || len(opened.Bindings) != 3 {
		t.Errorf("%d bindings, %d failed; want both clusterIPs and one node port", len(opened.Bindings), opened.Failed)
	}
	if n := r.log.count("nodePort 30080"); n != 1 {
		t.Errorf("said %d times, want once: %s", n, r.log.String())
	}
	_ = other.Close()
	if ports := nodePorts(r.Open(snap)); ports[30080] != "taken" {
		t.Errorf("node ports %v may get rules though the other program has gone", ports)
	}
	if n := r.log.count("solved"); n != 1 {
		t.Errorf("the end of the trouble was said %d times: %s", n, r.log.String())
	}
}

func TestListenerMovesAwayFromAPortThatAPortalNeeds(t *testing.T) {
	addr, stop := echo(t, "a", "10.88.0.11:0")
	defer stop()
	r := newRig(t, ruled)
	web := newPort("web", addr)
	listener := r.open(web)[0]
	at := netip.MustParseAddrPort(listener).Port()
	withExternalIP := func(p *service.Port, port uint16) *service.Port {
		p.Number, p.ExternalIPs = port, []netip.Addr{netip.MustParseAddr("10.88.0.12")}
		return p
	}
	for name, claiming := range map[string]func(*service.Port, uint16) *service.Port{"nodePort": withNodePort, "externalIP": withExternalIP} {
		other := claiming(newPort("other"), at)
		snap := &service.Snapshot{Ports: []*service.Port{web, other}}
		opened := r.Open(snap)
		if wants := len(opened.Bindings); wants != 2 || opened.Failed != 1 {
			t.Errorf("%s: %d portals are served and %d fail, want it alone to fail at first", name, wants, opened.Failed)
		}
		opened = r.Open(snap)
		moved := listenerOf(t, opened, web)
		if moved == listener {
			t.Fatalf("%s: the listener in the way stays at %s", name, moved)
		}
		for _, address := range []string{listener, moved} { // rules lead to the one, then to the other
			wantReset(t, address) // by itself nobody is served, but it listens
		}
		r.Prune()
		wantRefused(t, listener)
		if opened = r.Open(snap); opened.Failed != 0 || len(opened.Bindings) != 3 || listenerOf(t, opened, web) != moved {
			t.Errorf("%s: %+v, want all portals and the listener where it moved", name, opened)
		}
		listener = r.open(web)[0]
		r.Prune()
		at = netip.MustParseAddrPort(listener).Port()
	}
	if said := r.log.String(); strings.Contains(said, "cannot") {
		t.Errorf("said: %s", said)
	}
}

func TestServicesSwapTheirNodePortsInOneStep(t *testing.T) {
	r := newRig(t, ruled)
	r.open(withNodePort(newPort("a"), 30080), withNodePort(newPort("b"), 30081))
	opened := r.Open(&service.Snapshot{Ports: []*service.Port{withNodePort(newPort("a"), 30081), withNodePort(newPort("b"), 30080)}})
	if ports := nodePorts(opened); ports[30080] != "b" || ports[30081] != "a" || opened.Failed != 0 {
		t.Errorf("node ports %v, %d failed", ports, opened.Failed)
	}
	r.Prune()
	for _, port := range []string{":30080", ":30081"} {
		if ln, err := net.Listen("tcp", port); err == nil {
			_ = ln.Close()
			t.Errorf("%s is not held any more", port)
		}
	}
}

func TestExternalAddressOfTheNodeItselfIsNotTakenFromItsPrograms(t *testing.T) {
	ssh, err := net.Listen("tcp", "10.88.0.13:2222")
	check(t, err)
	defer func() { _ = ssh.Close() }()
	r := newRig(t, ruled)
	p := newPort("web")
	p.Number = 2222
	p.ExternalIPs = []netip.Addr{netip.MustParseAddr("10.88.0.13"), netip.MustParseAddr("192.0.2.1")}
	p.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("10.88.0.12")}
	opened := r.Open(&service.Snapshot{Ports: []*service.Port{p}})
	var portals []string
	for _, b := range opened.Bindings {
		portals = append(portals, b.Portal.Addr.String())
	}
	if len(portals) != 3 || opened.Failed != 1 {
		t.Errorf("portals %v, %d failed; want all but the one a program of the node listens on", portals, opened.Failed)
	}
	if ln, err := net.Listen("tcp", "10.88.0.12:2222"); err == nil {
		_ = ln.Close()
		t.Error("the load balancer's address, which is the node's own, is not held")
	}
}

func TestAddressThatIsNotTheNodesIsNotHeldEvenIfItCanBeBound(t *testing.T) {
	const anyAddress = "/proc/sys/net/ipv4/ip_nonlocal_bind"
	check(t, os.WriteFile(anyAddress, []byte("1"), 0))
	defer func() { check(t, os.WriteFile(anyAddress, []byte("0"), 0)) }()
	r := newRig(t, ruled)
	p := newPort("web")
	p.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	r.open(p)
	standby, err := net.Listen("tcp", "192.0.2.1:80") // as a program that waits for the address
	check(t, err)
	_ = standby.Close()
}

func TestAddressThatComesToTheNodeIsHeld(t *testing.T) {
	r := newRig(t, ruled)
	p := newPort("web")
	p.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	r.open(p)
	check(t, addAddress("lo", "192.0.2.1/32"))
	defer func() { check(t, removeAddress("lo", "192.0.2.1/32")) }()
	r.open(p)
	if ln, err := net.Listen("tcp", "192.0.2.1:80"); err == nil {
		_ = ln.Close()
		t.Error("another program could take it")
	}
}

func TestNodePortAndAPortalOfTheNodesAddressMayHaveOneNumber(t *testing.T) {
	outer := newPort("outer")
	outer.Number = 30080
	outer.ExternalIPs = []netip.Addr{netip.MustParseAddr("10.88.0.12")}
	for _, order := range [][]*service.Port{
		{outer, withNodePort(newPort("web"), 30080)},
		{withNodePort(newPort("web"), 30080), outer},
	} {
		r := newRig(t, ruled)
		r.open(order...)
		if ln, err := net.Listen("tcp", "10.88.0.12:30080"); err == nil {
			_ = ln.Close()
			t.Error("another program could take the address both hold")
		}
		r.open()
		r.Prune()
	}
}

func TestTroubleOfAServicePortIsToldOncePerCause(t *testing.T) {
	other, err := net.Listen("tcp", ":30080")
	check(t, err)
	defer func() { _ = other.Close() }()
	var told []string
	r := newRig(t, ruled, func(c *proxy.Config) {
		c.Trouble = func(name service.Name, what string, err error) {
			if !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("%s: %v, want that the port is in use", what, err)
			}
			told = append(told, name.String()+": "+what)
		}
	})
	snap := &service.Snapshot{Ports: []*service.Port{withNodePort(newPort("taken"), 30080), withNodePort(newPort("web"), 30081)}}
	for range 3 {
		r.Open(snap)
	}
	check(t, other.Close())
	r.Open(snap)
	if want := []string{"default/taken:http: open nodePort 30080"}; !slices.Equal(told, want) {
		t.Errorf("told of %q, want %q", told, want)
	}
}
