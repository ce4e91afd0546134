package datagram_test

import (
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/lab"
	"github.com/kube-splice/kube-splice/proxy/datagram"
)

// neighbor is another machine: a namespace joined to the tests' own by a veth pair
// with an MTU of 1500.
type neighbor struct {
	*lab.Namespace
	t *testing.T
}

// Addresses of the two ends; this machine has two of each family.
var (
	hereAddrs  = []string{"10.77.0.1/24", "10.77.0.5/24", "fd00:77::1/64", "fd00:77::5/64"}
	thereAddrs = []string{"10.77.0.2/24", "fd00:77::2/64"}
)

func newNeighbor(t *testing.T) *neighbor {
	t.Helper()
	runtime.LockOSThread() // LinkSetNsFd looks up nothing else
	defer runtime.UnlockOSThread()
	space, err := lab.NewNamespace("neighbor")
	check(t, err)
	t.Cleanup(func() { check(t, space.Close()) })
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "here", MTU: 1500}, PeerName: "there"}
	check(t, netlink.LinkAdd(pair))
	t.Cleanup(func() { check(t, netlink.LinkDel(pair)) })
	there, err := netlink.LinkByName("there")
	check(t, err)
	fd := -1
	check(t, space.Do(func() (err error) {
		fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	}))
	defer unix.Close(fd)
	check(t, netlink.LinkSetNsFd(there, fd))
	check(t, address("here", hereAddrs))
	check(t, space.Do(func() error { return address("there", thereAddrs) }))
	check(t, lab.AwaitAddresses())
	check(t, space.Do(lab.AwaitAddresses))
	return &neighbor{space, t}
}

// address brings a link up with addresses that may be used at once.
func address(name string, cidrs []string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, cidr := range cidrs {
		addr, err := netlink.ParseAddr(cidr)
		if err != nil {
			return err
		}
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(link)
}

// dial returns a client on the neighbor.
func (n *neighbor) dial(to *net.UDPAddr) *net.UDPConn {
	n.t.Helper()
	var c *net.UDPConn
	check(n.t, n.Do(func() (err error) {
		c, err = net.DialUDP("udp", nil, to)
		return err
	}))
	n.t.Cleanup(func() { _ = c.Close() })
	return c
}

// rules gives this machine packet rules, and takes them back.
func rules(t *testing.T, lines ...string) {
	t.Helper()
	for _, line := range lines {
		args := strings.Fields(line)
		if out, err := exec.Command(args[0], append([]string{"-w"}, args[1:]...)...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
		undo := strings.Fields(strings.Replace(line, " -A ", " -D ", 1))
		t.Cleanup(func() { _ = exec.Command(undo[0], append([]string{"-w"}, undo[1:]...)...).Run() })
	}
}

func udpAddr(text string) *net.UDPAddr { return net.UDPAddrFromAddrPort(netip.MustParseAddrPort(text)) }

func TestNeighborIsAnsweredFromEveryAddress(t *testing.T) {
	n := newNeighbor(t)
	for name, family := range families {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, family.listen, datagram.Config{}, echo(t, family.endpoint))
			for _, cidr := range hereAddrs {
				at := netip.MustParsePrefix(cidr).Addr()
				if at.Is4() != (name == "IPv4") {
					continue
				}
				client := n.dial(r.at(at.String()))
				for _, size := range []int{0, 1, 1472, 1473, 4097, 65507} { // longer than a packet, too
					text := strings.Repeat("x", size)
					ask(t, client, text, text)
				}
			}
		})
	}
}

func TestFirewallThatForbidsToSendIsSurvived(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	client := dial(t, r.at("127.0.0.1"))
	ask(t, client, "x", "x")
	rules(t, "iptables -A OUTPUT -p udp --dport "+port(r.endpoints[0])+" -m length --length 128 -j DROP") // 100 bytes of payload
	send(t, client, strings.Repeat("x", 100))
	eventually(t, "it is denied", func() bool { return r.Counts().Denied == 1 })
	ask(t, client, "y", "y")
}
