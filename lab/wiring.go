package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bridgeName is the bridge of a node's pods, by the name that kubenet gave it.
const bridgeName = "cbr0"

// wiring builds interfaces, addresses and routes. It holds one netlink socket in
// every namespace, so that no thread needs to move while it works.
type wiring struct {
	handles map[string]*netlink.Handle
	spaces  map[string]*Namespace
	bridges map[string]netlink.Link
}

func newWiring(namespaces []*Namespace) (*wiring, error) {
	w := &wiring{
		handles: map[string]*netlink.Handle{},
		spaces:  map[string]*Namespace{},
		bridges: map[string]netlink.Link{},
	}
	for _, n := range namespaces {
		err := n.Do(func() error {
			h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
			if err != nil {
				return fmt.Errorf("open a netlink socket in %s: %w", n.Name, err)
			}
			w.handles[n.Name], w.spaces[n.Name] = h, n
			return nil
		})
		if err != nil {
			w.close()
			return nil, err
		}
	}
	return w, nil
}

func (w *wiring) close() {
	for _, h := range w.handles {
		h.Close()
	}
}

// connect makes all that the plan says: bridges, the links between machines, and
// then the routes, whose neighbors must be on a link.
func (w *wiring) connect(plan []machine) error {
	for _, m := range plan {
		if err := w.addBridge(m); err != nil {
			return fmt.Errorf("add bridge %s to %s: %w", bridgeName, m.name, err)
		}
	}
	for _, m := range plan {
		for _, l := range m.links {
			if err := w.addLink(m.name, l); err != nil {
				return fmt.Errorf("link %s to %s: %w", m.name, l.peer, err)
			}
		}
	}
	for _, m := range plan {
		for _, r := range m.routes {
			if err := w.addRoute(m.name, r); err != nil {
				return fmt.Errorf("route %s in %s by %s: %w", r.dst, m.name, r.via, err)
			}
		}
	}
	return w.settle()
}

func (w *wiring) addBridge(m machine) error {
	if len(m.bridge) == 0 {
		return nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = bridgeName
	// A bridge left to itself takes over the lowest address among its ports, which
	// makes the pods' neighbor tables wrong.
	attrs.HardwareAddr = hardwareAddr(m.bridge[0].Addr())
	snooping := false
	br := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}
	if err := w.handles[m.name].LinkAdd(br); err != nil {
		return err
	}
	w.bridges[m.name] = br
	return w.raise(m.name, br, m.bridge)
}

// addLink makes the veth pair l: eth0 in machine name, and in the peer an
// interface that is called after name.
func (w *wiring) addLink(name string, l link) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "veth-" + name
	veth := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         "eth0",
		PeerHardwareAddr: hardwareAddr(l.addrs[0].Addr()),
		PeerNamespace:    netlink.NsFd(w.spaces[name].file.Fd()),
	}
	peer := w.handles[l.peer]
	if err := peer.LinkAdd(veth); err != nil {
		return err
	}
	if len(l.peerAddrs) == 0 {
		if err := w.plug(peer, veth, w.bridges[l.peer]); err != nil {
			return err
		}
	}
	if err := w.raise(l.peer, veth, l.peerAddrs); err != nil {
		return err
	}
	eth0, err := w.handles[name].LinkByName("eth0")
	if err != nil {
		return err
	}
	return w.raise(name, eth0, l.addrs)
}

// plug makes veth a port of bridge. Hairpin lets a pod reach itself by way of a
// Service when its node sends the packet back where it came from.
func (w *wiring) plug(h *netlink.Handle, veth, bridge netlink.Link) error {
	if err := h.LinkSetMaster(veth, bridge); err != nil {
		return fmt.Errorf("plug into %s: %w", bridgeName, err)
	}
	if err := h.LinkSetHairpin(veth, true); err != nil {
		return fmt.Errorf("set hairpin: %w", err)
	}
	return nil
}

// raise gives an interface its addresses and brings it up.
func (w *wiring) raise(name string, l netlink.Link, addrs []netip.Prefix) error {
	h := w.handles[name]
	for _, a := range addrs {
		if err := h.AddrAdd(l, &netlink.Addr{IPNet: ipNet(a)}); err != nil {
			return fmt.Errorf("add address %s: %w", a, err)
		}
	}
	if err := h.LinkSetUp(l); err != nil {
		return fmt.Errorf("bring up %s: %w", l.Attrs().Name, err)
	}
	return nil
}

// settle waits until every interface carries packets and every address answers. The
// kernel sees to both on workers of its own, some time after it was told, and what a
// pod sends before is lost: its first neighbor solicitation, which costs a second.
func (w *wiring) settle() error {
	deadline := time.Now().Add(10 * time.Second)
	for name, h := range w.handles {
		if err := await(h, name, firstUnready, deadline); err != nil {
			return err
		}
	}
	return nil
}

// await waits until find finds nothing any more.
func await(h *netlink.Handle, name string, find func(*netlink.Handle) (string, error), deadline time.Time) error {
	for {
		unready, err := find(h)
		switch {
		case err != nil:
			return fmt.Errorf("look at the interfaces of %s: %w", name, err)
		case unready == "":
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("%s in %s did not become ready", unready, name)
		}
		time.Sleep(time.Millisecond)
	}
}

// firstUnready names an interface that is not operational (RFC 2863) or an address
// that is tentative (RFC 4862), if one is left. An address without duplicate address
// detection is tentative until its interface listens for solicitations.
func firstUnready(h *netlink.Handle) (string, error) {
	links, err := h.LinkList()
	if err != nil {
		return unlessChanged(err)
	}
	for _, l := range links {
		a := l.Attrs()
		if a.Flags&net.FlagLoopback == 0 && a.OperState != netlink.OperUp {
			return "interface " + a.Name, nil
		}
	}
	return firstTentative(h)
}

func firstTentative(h *netlink.Handle) (string, error) {
	addrs, err := h.AddrList(nil, netlink.FAMILY_V6)
	if err != nil {
		return unlessChanged(err)
	}
	for _, a := range addrs {
		if a.Flags&unix.IFA_F_TENTATIVE != 0 {
			return "address " + a.IPNet.String(), nil
		}
	}
	return "", nil
}

// AwaitAddresses waits until every address of the caller's network namespace can be used. One
// of IPv6 cannot for a moment after it was added, even on a loopback interface. It is for
// tests that add addresses themselves, to interfaces that are up.
func AwaitAddresses() error {
	h, err := netlink.NewHandle()
	if err != nil {
		return fmt.Errorf("look at the addresses: %w", err)
	}
	defer h.Close()
	return await(h, "this namespace", firstTentative, time.Now().Add(10*time.Second))
}

// unlessChanged takes a list that changed while it was read for one to read again.
func unlessChanged(err error) (string, error) {
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return "something", nil
	}
	return "", err
}

func (w *wiring) addRoute(name string, r route) error {
	return w.handles[name].RouteAdd(&netlink.Route{Dst: ipNet(r.dst), Gw: r.via.AsSlice()})
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// hardwareAddr is a locally administered address that shows the IPv4 address of
// its interface: 02:00:0a:f4:01:0b is 10.244.1.11.
func hardwareAddr(addr netip.Addr) net.HardwareAddr {
	return append(net.HardwareAddr{0x02, 0x00}, addr.AsSlice()...)
}

// writeSysctls sets what the lab relies on in the network namespace of the calling
// thread, to which /proc/sys/net belongs, before any interface is made.
func writeSysctls(forwards bool) error {
	values := map[string]string{
		"ipv4/conf/all/rp_filter":     "0", // a new namespace copies the host's IPv4 settings
		"ipv4/conf/default/rp_filter": "0",
	}
	// Addresses must be usable at once, without duplicate address detection
	// (RFC 4862), and come from nobody else.
	for _, which := range []string{"all", "default"} {
		values["ipv6/conf/"+which+"/disable_ipv6"] = "0"
		values["ipv6/conf/"+which+"/accept_dad"] = "0"
		values["ipv6/conf/"+which+"/accept_ra"] = "0"
	}
	values["ipv4/ip_forward"], values["ipv6/conf/all/forwarding"] = "0", "0"
	if forwards {
		values["ipv4/ip_forward"], values["ipv6/conf/all/forwarding"] = "1", "1"
	}
	for key, value := range values {
		if err := os.WriteFile("/proc/sys/net/"+key, []byte(value), 0); err != nil {
			return fmt.Errorf("set sysctl: %w", err)
		}
	}
	return nil
}
