package redirect_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/lab"
	"github.com/kube-splice/kube-splice/redirect"
	"github.com/kube-splice/kube-splice/service"
)

// cluster is a lab whose node has rules that lead to listeners of the test.
type cluster struct {
	*node
	*lab.Lab
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	return newClusterOf(t, lab.Config{Pods: 1, OneNode: true})
}

func newClusterOf(t *testing.T, config lab.Config) *cluster {
	t.Helper()
	l, err := lab.New(config)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{node: &node{t, l.Node}, Lab: l}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// serve opens a listener in a namespace that answers every connection with the
// word, and returns its port.
func (c *cluster) serve(where *lab.Namespace, address, word string) uint16 {
	c.t.Helper()
	listener, err := where.Listen("tcp", address)
	if err != nil {
		c.t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { answer(listener, word) })
	c.t.Cleanup(func() { listener.Close(); serving.Wait() })
	return netip.MustParseAddrPort(listener.Addr().String()).Port()
}

func answer(listener net.Listener, word string) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		io.WriteString(conn, word)
		conn.Close()
	}
}

// ask connects and returns what it was answered, "refused" or "no answer".
func ask(from *lab.Namespace, address string, mark int) string {
	dialer := net.Dialer{Timeout: time.Second, Control: func(_, _ string, raw syscall.RawConn) (err error) {
		if mark != 0 {
			raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark) })
		}
		return err
	}}
	var answer string
	err := from.Do(func() error {
		conn, err := dialer.DialContext(context.Background(), "tcp", address)
		if err != nil {
			return err
		}
		defer conn.Close()
		text, err := io.ReadAll(conn)
		answer = string(text)
		return err
	})
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case err != nil:
		return "no answer"
	}
	return answer
}

func (c *cluster) expect(from *lab.Namespace, address, want string) {
	c.t.Helper()
	if got := ask(from, address, 0); got != want {
		c.t.Errorf("from %s to %s: %s, want %s", from.Name, address, got, want)
	}
}

// everywhere expects the same answer from a pod, the node and the outside.
func (c *cluster) everywhere(address, want string) {
	c.t.Helper()
	for _, from := range []*lab.Namespace{c.Pod("client").Namespace, c.Node, c.Outside} {
		c.expect(from, address, want)
	}
}

// beyond gives the outside host an address that the node does not have, and makes
// the router lead to it.
func (c *cluster) beyond(address string) {
	c.t.Helper()
	if err := c.Outside.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(address + "/32")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(lo, addr)
	}); err != nil {
		c.t.Fatal(err)
	}
	if err := c.Router.Do(func() error {
		dst, err := netlink.ParseIPNet(address + "/32")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP(lab.OutsideIP)})
	}); err != nil {
		c.t.Fatal(err)
	}
}

func TestPortalsAnswerFromEverywhere(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		c := newCluster(t)
		v4, v6 := c.serve(c.Node, "0.0.0.0:0", "four"), c.serve(c.Node, "[::]:0", "six")
		c.sync(c.open(redirect.Config{}), rules(
			binding("shop/web", service.TCP, service.ClusterIP, "10.96.0.10", 80, v4),
			binding("shop/web", service.TCP, service.LoadBalancer, "10.96.1.10", 80, v4),
			binding("shop/web", service.TCP, service.ExternalIP, lab.NodeSecondIP, 80, v4),
			binding("shop/web", service.TCP, service.ExternalIP, externalIP, 80, v4),
			binding("shop/web", service.TCP, service.NodePort, "", 30080, v4),
			binding("shop/web", service.TCP, service.ClusterIP, "fd00:10:96::10", 80, v6),
			binding("shop/web", service.TCP, service.LoadBalancer, "fd00:10:96::20", 80, v6),
			binding("shop/web", service.TCP, service.ExternalIP, "fd00:172:20:1::5", 80, v6),
			binding("shop/web", service.TCP, service.ExternalIP, externalIPv6, 80, v6),
			inIPv6(binding("shop/web", service.TCP, service.NodePort, "", 30080, v6)),
		))
		for _, address := range []string{"10.96.0.10:80", "10.96.1.10:80", lab.NodeSecondIP + ":80", externalIP + ":80",
			lab.NodeIP + ":30080", lab.NodeSecondIP + ":30080"} {
			c.everywhere(address, "four")
		}
		for _, address := range []string{"[fd00:10:96::10]:80", "[fd00:10:96::20]:80", "[fd00:172:20:1::5]:80", "[" + externalIPv6 + "]:80",
			"[" + lab.NodeIPv6 + "]:30080", "[fd00:172:20:1::5]:30080"} {
			c.everywhere(address, "six")
		}
		c.expect(c.Node, "127.0.0.1:30080", "four")
		c.expect(c.Node, "[::1]:30080", "six")
		c.expect(c.Pod("client").Namespace, "10.244.1.1:30080", "four")
		c.expect(c.Pod("client").Namespace, "[fd00:10:244:1::1]:30080", "six")
		c.everywhere(lab.NodeIP+":80", "refused")
	})
}

func TestListenerOnOneAddressIsLedTo(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		c := newCluster(t)
		b := binding("shop/web", service.TCP, service.ClusterIP, "10.96.0.10", 80, 0)
		b.Listener = netip.AddrPortFrom(netip.MustParseAddr(lab.NodeSecondIP), c.serve(c.Node, lab.NodeSecondIP+":0", "bound"))
		c.sync(c.open(redirect.Config{}), rules(b))
		c.everywhere("10.96.0.10:80", "bound")
	})
}

func TestUDPAnswersComeFromThePortal(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		c := newCluster(t)
		server, err := c.Node.ListenPacket("udp4", "0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		var serving sync.WaitGroup
		serving.Go(func() { echo(server) })
		t.Cleanup(func() { server.Close(); serving.Wait() })
		port := netip.MustParseAddrPort(server.LocalAddr().String()).Port()
		c.sync(c.open(redirect.Config{}), rules(
			binding("kube-system/dns", service.UDP, service.ClusterIP, "10.96.0.53", 53, port),
			binding("kube-system/dns", service.UDP, service.NodePort, "", 30053, port)))
		for _, from := range []*lab.Namespace{c.Pod("client").Namespace, c.Node, c.Outside} {
			for _, address := range []string{"10.96.0.53:53", lab.NodeIP + ":30053"} {
				conn, err := from.Dial("udp", address, time.Second) // connected: takes answers from there only
				if err != nil {
					t.Fatal(err)
				}
				conn.SetDeadline(time.Now().Add(10 * time.Second))
				io.WriteString(conn, "ping")
				if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil {
					t.Errorf("from %s to %s: %v", from.Name, address, err)
				}
				conn.Close()
			}
		}
	})
}

func echo(conn net.PacketConn) {
	packet := make([]byte, 100)
	for {
		n, from, err := conn.ReadFrom(packet)
		if err != nil {
			return
		}
		conn.WriteTo(packet[:n], from)
	}
}

func TestExternalIPOfAnotherMachineIsLedToTheService(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		c := newCluster(t)
		const beyond = "203.0.113.9"
		c.beyond(beyond)
		c.serve(c.Outside, beyond+":80", "the other machine")
		port := c.serve(c.Node, "0.0.0.0:0", "service")
		r := c.open(redirect.Config{})
		c.sync(r, rules(binding("shop/web", service.TCP, service.ExternalIP, beyond, 80, port)))
		c.expect(c.Pod("client").Namespace, beyond+":80", "service")
		c.expect(c.Node, beyond+":80", "service")
		c.sync(r, rules())
		c.expect(c.Pod("client").Namespace, beyond+":80", "the other machine")
		c.expect(c.Node, beyond+":80", "the other machine")
	})
}

func TestMarkedSocketsPassUntouched(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		c := newCluster(t)
		const address = "203.0.113.10:80"
		c.beyond("203.0.113.10")
		c.serve(c.Outside, address, "endpoint")
		port := c.serve(c.Node, "0.0.0.0:0", "service")
		c.serve(c.Node, lab.NodeIP+":30080", "node's own")
		c.sync(c.open(redirect.Config{}), rules(
			binding("shop/web", service.TCP, service.LoadBalancer, "203.0.113.10", 80, port),
			binding("shop/web", service.TCP, service.NodePort, "", 30080, port)))
		c.expect(c.Node, address, "service")
		if got := ask(c.Node, address, redirect.Mark); got != "endpoint" {
			t.Errorf("marked socket to a portal: %s, want endpoint", got)
		}
		c.expect(c.Node, lab.NodeIP+":30080", "service")
		if got := ask(c.Node, lab.NodeIP+":30080", redirect.Mark|1); got != "node's own" {
			t.Errorf("marked socket to a node port: %s, want node's own", got)
		}
	})
}

func TestPortalOnTheNodeComesBeforeANodePort(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		c := newCluster(t)
		portal, nodePort := c.serve(c.Node, "0.0.0.0:0", "portal"), c.serve(c.Node, "0.0.0.0:0", "node port")
		c.sync(c.open(redirect.Config{}), rules(
			binding("shop/b", service.TCP, service.NodePort, "", 30080, nodePort),
			binding("shop/a", service.TCP, service.LoadBalancer, lab.NodeSecondIP, 30080, portal)))
		c.everywhere(lab.NodeSecondIP+":30080", "portal")
		c.everywhere(lab.NodeIP+":30080", "node port")
	})
}

func TestNodePortAddressesLimitWhoAnswers(t *testing.T) {
	choose(t, "nft")
	cases := []struct {
		addresses                        []string
		first, second, firstV6, loopback string
	}{
		{[]string{lab.NodeIP + "/32"}, "four", "refused", "six", "refused"},
		{[]string{lab.NodeSecondIP + "/32", "127.0.0.0/8"}, "refused", "four", "six", "four"},
		{[]string{"172.20.1.0/24", "fd01::/64"}, "four", "four", "refused", "refused"},
		{[]string{"primary"}, "four", "refused", "six", "refused"},
		{[]string{"0.0.0.0/0"}, "four", "four", "six", "four"},
		{[]string{"localhost"}, "refused", "refused", "refused", "four"},
		{[]string{"localhost", "all"}, "four", "four", "six", "four"},
	}
	for _, test := range cases {
		c := newCluster(t)
		v4, v6 := c.serve(c.Node, "0.0.0.0:0", "four"), c.serve(c.Node, "[::]:0", "six")
		want := rules(
			binding("shop/web", service.TCP, service.NodePort, "", 30080, v4),
			inIPv6(binding("shop/web", service.TCP, service.NodePort, "", 30080, v6)))
		want.NodeIPs = []netip.Addr{netip.MustParseAddr(lab.NodeIP), netip.MustParseAddr(lab.NodeIPv6)}
		c.sync(c.open(redirect.Config{NodePortAddresses: nodePorts(t, test.addresses...)}), want)
		c.everywhere(lab.NodeIP+":30080", test.first)
		c.everywhere(lab.NodeSecondIP+":30080", test.second)
		c.everywhere("["+lab.NodeIPv6+"]:30080", test.firstV6)
		c.expect(c.Node, "127.0.0.1:30080", test.loopback)
	}
}

func TestNodePortPassesAFirewallThatDropsByDefault(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		c := newCluster(t)
		c.run("iptables -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT")
		c.run("iptables -A INPUT -p tcp -j REJECT --reject-with tcp-reset")
		port := c.serve(c.Node, "0.0.0.0:0", "node port")
		c.sync(c.open(redirect.Config{}), rules(binding("shop/web", service.TCP, service.NodePort, "", 30080, port)))
		c.everywhere(lab.NodeIP+":30080", "node port")
		c.serve(c.Node, "0.0.0.0:9999", "not a Service")
		c.expect(c.Outside, lab.NodeIP+":9999", "refused")
	})
}

func TestServiceAnswersAgainAfterAFlush(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		c := newCluster(t)
		want := rules(binding("shop/web", service.TCP, service.NodePort, "", 30080, c.serve(c.Node, "0.0.0.0:0", "web")))
		r := c.open(redirect.Config{})
		c.sync(r, want)
		c.everywhere(lab.NodeIP+":30080", "web")
		c.run("iptables -t nat -F")
		c.run("iptables -t nat -X")
		c.everywhere(lab.NodeIP+":30080", "refused")
		if c.intact(r) {
			t.Error("intact after a flush")
		}
		c.sync(r, want)
		c.everywhere(lab.NodeIP+":30080", "web")
		c.cleanup()
		c.everywhere(lab.NodeIP+":30080", "refused")
	})
}
