package redirect_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kube-splice/kube-splice/redirect"
	"github.com/kube-splice/kube-splice/service"
)

// expectInside makes sure that the rules for the node's own traffic have this
// target.
func (n *node) expectInside(target string) {
	n.t.Helper()
	if saved := n.table("iptables-save"); countLines(saved, "-A KUBE-PORTALS-HOST -d .* -j "+target+"$") != 1 {
		n.t.Errorf("rules for the node itself do not lead to %s:\n%s", target, saved)
	}
}

func TestChangedNodeAddressChangesTheRules(t *testing.T) {
	choose(t, "nft")
	n := newNode(t)
	r := n.open(redirect.Config{})
	second := netip.MustParseAddr("198.51.100.77")
	want := rules(binding("shop/web", service.TCP, service.ClusterIP, "10.96.0.10", 80, 40001))
	expect := func(target string) {
		t.Helper()
		n.sync(r, want)
		n.expectInside(target)
	}
	expect("DNAT --to-destination 192.0.2.1:40001")
	n.addAddress(second)
	expect("DNAT --to-destination 192.0.2.1:40001")
	want.NodeIPs = []netip.Addr{netip.MustParseAddr("8.8.8.8"), second}
	expect("DNAT --to-destination 198.51.100.77:40001")
	n.removeAddress(second)
	expect("DNAT --to-destination 192.0.2.1:40001")
	n.removeAddress(nodeIP)
	expect("REDIRECT --to-ports 40001")
}

func TestAddressOfTheDefaultRouteIsPreferred(t *testing.T) {
	choose(t, "nft")
	n := newNode(t)
	n.do(func() error {
		uplink := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "uplink"}}
		if err := netlink.LinkAdd(uplink); err != nil {
			return err
		}
		addr, err := netlink.ParseAddr("198.51.100.1/24")
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(uplink, addr); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(uplink); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: uplink.Index, Gw: []byte{198, 51, 100, 254}})
	})
	n.sync(n.open(redirect.Config{}), rules(binding("shop/web", service.TCP, service.ClusterIP, "10.96.0.10", 80, 40001)))
	n.expectInside("DNAT --to-destination 198.51.100.1:40001")
}

func TestFirstOfTwoLikePortalsHasIt(t *testing.T) {
	choose(t, "nft")
	n := newNode(t)
	n.sync(n.open(redirect.Config{}), rules(
		binding("shop/b", service.TCP, service.LoadBalancer, "10.96.0.10", 80, 40001),
		binding("shop/a", service.TCP, service.ClusterIP, "10.96.0.10", 80, 40002),
		binding("shop/a", service.UDP, service.ClusterIP, "10.96.0.10", 80, 40003)))
	n.expectInside("DNAT --to-destination 192.0.2.1:40001")
	n.expectInside("DNAT --to-destination 192.0.2.1:40003")
	if saved := n.saved(); countLines(saved, "40002") != 0 {
		t.Errorf("the second has rules too:\n%s", saved)
	}
}

func TestBindingsThatMakeNoSenseAreRefusedAlone(t *testing.T) {
	choose(t, "nft")
	bad := map[string]func(b *service.Binding){
		"sctp":                    func(b *service.Binding) { b.Name.Protocol = "sctp" },
		"has no port":             func(b *service.Binding) { b.Portal.Number = 0 },
		"has no address":          func(b *service.Binding) { b.Portal.Addr = netip.Addr{} },
		"address is not IPv4":     func(b *service.Binding) { b.Portal.Addr = nodeIPv6 },
		"listener has no":         func(b *service.Binding) { b.Listener = netip.AddrPort{} },
		"2001:db8::1 is not IPv4": func(b *service.Binding) { b.Listener = netip.AddrPortFrom(nodeIPv6, 1) },
	}
	for reason, spoil := range bad {
		n := newNode(t)
		b := binding("shop/bad", service.TCP, service.ClusterIP, "10.96.0.66", 80, 41000)
		spoil(&b)
		err := n.trySync(t.Context(), n.open(redirect.Config{}), redirect.Rules{Bindings: append(every().Bindings, b)})
		expectError(t, err, "shop/bad", reason)
		checkGolden(t, "every.ipv4", n.table("iptables-save -t nat")+n.table("iptables-save -t filter"))
	}
}

func TestPrimaryOfAFamilyWithoutAddressesAnswersNowhere(t *testing.T) {
	choose(t, "nft")
	n := newNode(t)
	n.removeAddress(nodeIP)
	n.sync(n.open(redirect.Config{NodePortAddresses: nodePorts(t, "primary")}), every())
	if saved := n.table("iptables-save"); countLines(saved, "-j KUBE-NODEPORT-(CONTAINER|HOST)") != 0 {
		t.Errorf("all IPv4 addresses answer on node ports:\n%s", saved)
	}
	if saved := n.table("ip6tables-save"); countLines(saved, "-d 2001:db8::1/128 .*-j KUBE-NODEPORT-(CONTAINER|HOST)") != 2 {
		t.Errorf("the IPv6 address does not answer on node ports:\n%s", saved)
	}
}

func TestAddressThatPassesIsChosenLast(t *testing.T) {
	choose(t, "nft")
	for name, add := range map[string]func(n *node) (address string){
		"deprecated": func(n *node) string {
			n.run("ip -6 addr add 2001:db8::dead/64 dev eth0 nodad preferred_lft 0")
			return "2001:db8::dead"
		},
		"tentative": func(n *node) string { // until the interface has a carrier
			n.run("ip -6 addr add 2001:db8::dead/64 dev eth0")
			return "2001:db8::dead"
		},
		"temporary": addTemporary,
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			r := n.open(redirect.Config{})
			expect := func(address string) {
				t.Helper()
				n.sync(r, rules(binding("shop/web", service.TCP, service.ClusterIP, "fd00:10:96::10", 80, 40001)))
				if saved := n.table("ip6tables-save"); countLines(saved, `--to-destination \[`+address+`\]:40001`) != 1 {
					t.Errorf("rules do not lead to %s:\n%s\n%s", address, saved, n.run("ip -6 addr show dev eth0"))
				}
			}
			address := add(n) // newer ones are listed first
			expect("2001:db8::1")
			if address != "" {
				n.removeAddress(nodeIPv6)
				expect(address)
			}
		})
	}
}

// addTemporary makes the kernel derive an address from the node's, as for privacy,
// ready for use. It goes with the one it is derived from.
func addTemporary(n *node) (address string) {
	n.t.Helper()
	n.removeAddress(nodeIPv6)
	for _, command := range []string{
		"sysctl -qw net.ipv6.conf.all.accept_dad=0",
		"sysctl -qw net.ipv6.conf.eth0.accept_dad=0",
		"sysctl -qw net.ipv6.conf.eth0.use_tempaddr=2",
		"ip link add port type veth peer name end",
		"ip link set end up",
		"ip link set port master eth0 up",
		"ip -6 addr add 2001:db8::1/64 dev eth0 mngtmpaddr",
	} {
		n.run(command)
	}
	for deadline := time.Now().Add(10 * time.Second); n.run("ip -6 -o addr show dev eth0 temporary -tentative") == ""; {
		if time.Now().After(deadline) {
			n.t.Fatalf("no temporary address: %s", n.run("ip -6 addr show dev eth0"))
		}
		time.Sleep(10 * time.Millisecond)
	}
	return ""
}
