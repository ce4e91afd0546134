package lab_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/lab"
)

func newLab(t testing.TB, config lab.Config) *lab.Lab {
	t.Helper()
	l, err := lab.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// reach connects from one namespace to an address at which another listens, and
// returns the client's address as the server saw it. Its time is too short for a lost packet.
func reach(t *testing.T, from, to *lab.Namespace, addr netip.Addr) netip.Addr {
	t.Helper()
	l, err := to.Listen("tcp", "[::]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).AddrPort().Port()
	c, err := from.Dial("tcp", netip.AddrPortFrom(addr, port).String(), 900*time.Millisecond)
	if err != nil {
		t.Fatalf("%s to %s: %v", from.Name, to.Name, err)
	}
	defer c.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	return netip.MustParseAddrPort(accepted.RemoteAddr().String()).Addr().Unmap()
}

func TestMachinesReachEachOtherUnmasqueraded(t *testing.T) {
	l := newLab(t, lab.Config{})
	client, podA, podD := l.Pod("client"), l.Pod("pod-a"), l.Pod("pod-d")
	outside := [2]string{lab.OutsideIP, lab.OutsideIPv6}
	for _, c := range []struct {
		from      *lab.Namespace
		fromAddrs [2]string
		to        *lab.Namespace
		toAddrs   [2]string
	}{
		{client.Namespace, addrs(client), podA.Namespace, addrs(podA)},    // over the bridge
		{client.Namespace, addrs(client), podD.Namespace, addrs(podD)},    // over the router to the other node
		{podD.Namespace, addrs(podD), podA.Namespace, addrs(podA)},        // and back
		{podA.Namespace, addrs(podA), l.Outside, outside},                 // out
		{l.Outside, outside, podD.Namespace, addrs(podD)},                 // and in
		{l.Outside, outside, l.Node, [2]string{lab.NodeIP, lab.NodeIPv6}}, // to a node
		{l.Outside, outside, l.Node, [2]string{lab.NodeSecondIP, "fd00:172:20:1::5"}},
		{l.Outside, outside, l.Node2, [2]string{lab.Node2IP, "fd00:172:20:2::2"}},
		{l.Node, [2]string{"10.244.1.1", "fd00:10:244:1::1"}, podA.Namespace, addrs(podA)}, // from a node to its pod
	} {
		for i, to := range c.toAddrs {
			saw := reach(t, c.from, c.to, netip.MustParseAddr(to))
			if saw.String() != c.fromAddrs[i] {
				t.Errorf("%s was reached by %s as %s, want %s", to, c.from.Name, saw, c.fromAddrs[i])
			}
		}
	}
}

func addrs(p *lab.Pod) [2]string { return [2]string{p.Addr4.String(), p.Addr6.String()} }

// With every address of the Service network local to the node, whoever asks for
// one must arrive there.
func TestServiceAddressesLeadToTheNode(t *testing.T) {
	l := newLab(t, lab.Config{})
	err := l.Node.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		for _, cidr := range []string{lab.ServiceCIDR, lab.ServiceCIDRv6} {
			dst, _ := netlink.ParseIPNet(cidr)
			r := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst,
				Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}
			if err := netlink.RouteAdd(r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range []*lab.Namespace{l.Pod("client").Namespace, l.Pod("pod-e").Namespace, l.Node2, l.Outside} {
		for _, portal := range []string{"10.96.0.10", "fd00:10:96::10"} {
			reach(t, from, l.Node, netip.MustParseAddr(portal))
		}
	}
}

// The kernel makes interfaces ready on workers that wait for the same lock as
// whoever changes interfaces, so a machine with much of that is slow to do it.
func TestFirstPacketOfAFreshLabArrivesOnABusyMachine(t *testing.T) {
	busy := newNamespace(t, "busy")
	ctx, cancel := context.WithCancel(t.Context())
	var changing sync.WaitGroup
	for i := range 2 {
		changing.Go(func() { changeInterfaces(ctx, t, busy, fmt.Sprint("bridge", i)) })
	}
	for range 5 {
		l := newLab(t, lab.Config{Pods: 1, OneNode: true})
		client, pod := l.Pod("client"), l.Pod("pod-a")
		for _, n := range []*lab.Namespace{l.Node, l.Router, l.Outside, client.Namespace, pod.Namespace} {
			noTentativeAddress(t, n)
		}
		reach(t, client.Namespace, pod.Namespace, pod.Addr4)
		reach(t, client.Namespace, pod.Namespace, pod.Addr6)
		reach(t, l.Outside, l.Node, netip.MustParseAddr(lab.NodeIPv6))
	}
	cancel()
	changing.Wait()
}

func noTentativeAddress(t *testing.T, n *lab.Namespace) {
	t.Helper()
	err := n.Do(func() error {
		addrs, err := netlink.AddrList(nil, netlink.FAMILY_V6)
		for _, a := range addrs {
			if a.Flags&unix.IFA_F_TENTATIVE != 0 {
				t.Errorf("%s in %s is tentative", a.IPNet, n.Name)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func changeInterfaces(ctx context.Context, t *testing.T, n *lab.Namespace, name string) {
	err := n.Do(func() error {
		for ctx.Err() == nil {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = name
			bridge := &netlink.Bridge{LinkAttrs: attrs}
			if err := netlink.LinkAdd(bridge); err != nil {
				return err
			}
			if err := netlink.LinkDel(bridge); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestSmallLabHasWhatWasAskedFor(t *testing.T) {
	l := newLab(t, lab.Config{Pods: 2, OneNode: true})
	var names []string
	for _, p := range l.Pods {
		names = append(names, p.Name)
		if p.Node != l.Node {
			t.Errorf("%s is not on the node", p.Name)
		}
	}
	if want := []string{"pod-a", "pod-b", "client"}; !slices.Equal(names, want) {
		t.Errorf("pods %v, want %v", names, want)
	}
	if l.Node2 != nil || l.Pod("pod-d") != nil {
		t.Error("there is a second node")
	}
	reach(t, l.Pod("client").Namespace, l.Outside, netip.MustParseAddr(lab.OutsideIPv6))
}

func TestTooManyPodsAreRefused(t *testing.T) {
	if _, err := lab.New(lab.Config{Pods: 4}); err == nil || !strings.Contains(err.Error(), "1 to 3") {
		t.Errorf("New said %v", err)
	}
}

func TestBridgePortsHairpin(t *testing.T) {
	l := newLab(t, lab.Config{Pods: 1, OneNode: true})
	err := l.Node.Do(func() error {
		for _, name := range []string{"veth-pod-a", "veth-client"} {
			port, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			info, err := netlink.LinkGetProtinfo(port)
			if err != nil {
				return err
			}
			if !info.Hairpin {
				t.Errorf("no hairpin on %s", name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestPodServesDatagramsInTheSameWay(t *testing.T) {
	l := newLab(t, lab.Config{Pods: 1, OneNode: true})
	pod, client := l.Pod("pod-a"), l.Pod("client")
	server, err := pod.ServeDatagrams(8053)
	if err != nil {
		t.Fatal(err)
	}
	for to, want := range map[string]string{"10.244.1.11:8053": "pod-a 10.244.1.50:", "[fd00:10:244:1::11]:8053": "pod-a [fd00:10:244:1::50]:"} {
		conn, err := client.Dial("udp", to, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := conn.Write([]byte("who")); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 100)
		n, err := conn.Read(answer)
		if body := string(answer[:n]); err != nil || !strings.HasPrefix(body, want) || !strings.HasSuffix(body, "\n") {
			t.Errorf("answer %q, %v; want %q and a port", body, err, want)
		}
	}
	if _, err := pod.ServeDatagrams(8053); err == nil {
		t.Error("a second server took the same port")
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	again, err := pod.ServeDatagrams(8053)
	if err != nil {
		t.Fatal("the server was closed and still has the port:", err)
	}
	_ = again.Close()
}

func TestPodServesItsNameAndThePeerItSaw(t *testing.T) {
	l := newLab(t, lab.Config{Pods: 1, OneNode: true})
	pod, client := l.Pod("pod-a"), l.Pod("client")
	server, err := pod.Serve(8080)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ to, want string }{
		{"10.244.1.11:8080", "pod-a 10.244.1.50:"},
		{"[fd00:10:244:1::11]:8080", "pod-a [fd00:10:244:1::50]:"},
	} {
		body, err := get(context.Background(), client.DialContext, "http://"+c.to)
		if err != nil || !strings.HasPrefix(body, c.want) || !strings.HasSuffix(body, "\n") {
			t.Errorf("answer %q, %v; want %q and a port", body, err, c.want)
		}
	}
	if _, err := pod.Serve(8080); err == nil {
		t.Error("a second server took the same port")
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if c, err := client.Dial("tcp", "10.244.1.11:8080", time.Second); err == nil {
		c.Close()
		t.Error("the server was closed and still accepts")
	}
}

// What a program can have left behind: descriptors, mounts, interfaces, threads in
// other namespaces.
type traces struct {
	descriptors int
	mounts      string
	interfaces  []string
	namespaces  []string
}

func look(t *testing.T) traces {
	t.Helper()
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	l := traces{descriptors: len(descriptors), mounts: string(mounts), namespaces: threadNamespaces(t)}
	for _, i := range interfaces {
		l.interfaces = append(l.interfaces, i.Name)
	}
	return l
}

func (l traces) compare(t *testing.T, now traces) {
	t.Helper()
	if now.descriptors > l.descriptors { // fewer: an earlier test's have just been closed
		t.Errorf("%d descriptors, were %d", now.descriptors, l.descriptors)
	}
	if now.mounts != l.mounts {
		t.Errorf("mounts are\n%swere\n%s", now.mounts, l.mounts)
	}
	if !slices.Equal(now.interfaces, l.interfaces) {
		t.Errorf("interfaces %v, were %v", now.interfaces, l.interfaces)
	}
	if !slices.Equal(now.namespaces, l.namespaces) {
		t.Errorf("threads are in %v, were in %v", now.namespaces, l.namespaces)
	}
}

func TestCloseLeavesNothingBehind(t *testing.T) {
	for name, config := range map[string]lab.Config{"anonymous": {}, "named": {Prefix: "left-"}} {
		t.Run(name, func(t *testing.T) {
			before := look(t)
			l, err := lab.New(config)
			if err != nil {
				t.Fatal(err)
			}
			reach(t, l.Outside, l.Pod("pod-a").Namespace, l.Pod("pod-a").Addr4)
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			if err := l.Close(); err != nil {
				t.Errorf("second Close: %v", err)
			}
			before.compare(t, look(t))
			if entries, _ := os.ReadDir("/run/netns"); len(entries) > 0 {
				t.Errorf("/run/netns has %v", entries)
			}
		})
	}
}

func TestTakenNameIsReportedAndNothingIsLeft(t *testing.T) {
	first := newLab(t, lab.Config{Pods: 1, OneNode: true, Prefix: "twice-"})
	before := look(t)
	_, err := lab.New(lab.Config{Prefix: "twice-"})
	if err == nil || !strings.Contains(err.Error(), "ip netns del twice-node") {
		t.Fatalf("New said %v", err)
	}
	before.compare(t, look(t))
	for _, name := range []string{"node", "client"} {
		if _, err := os.Stat("/run/netns/twice-" + name); err != nil {
			t.Errorf("the first lab lost a name: %v", err)
		}
	}
	reach(t, first.Outside, first.Node, netip.MustParseAddr(lab.NodeIP))
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		l, err := lab.New(lab.Config{})
		if err != nil {
			b.Fatal(err)
		}
		l.Close()
	}
}
