package redirect

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-splice/kube-splice/service"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hostAddress chooses the node's address that rules for the node's own traffic
// lead to: the Node object's if this host has it, else one of the interface with
// the default route, else the first global one. The result is invalid, without
// an error, when this host has no address of the family but loopback and
// link-local ones.
func hostAddress(family service.Family, nodeIPs []netip.Addr) (netip.Addr, error) {
	var onDefault, global []netip.Addr
	links, err := defaultLinks(family)
	if err != nil {
		return netip.Addr{}, err
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlinkFamily(family)) })
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list %s addresses of this host: %w", family, err)
	}
	for _, a := range addrs {
		addr, ok := netip.AddrFromSlice(a.IP)
		if !ok || !usable(a, addr.Unmap()) {
			continue
		}
		global = append(global, addr.Unmap())
		if slices.Contains(links, a.LinkIndex) {
			onDefault = append(onDefault, addr.Unmap())
		}
	}
	for _, addr := range nodeIPs {
		if addr = addr.Unmap(); slices.Contains(global, addr) {
			return addr, nil
		}
	}
	if candidates := append(onDefault, global...); len(candidates) > 0 {
		return candidates[0], nil
	}
	return netip.Addr{}, nil
}

// usable reports whether packets may be led to addr. An IPv6 address that is not
// yet known to be unique, or known not to be, does not answer.
func usable(a netlink.Addr, addr netip.Addr) bool {
	return service.CheckEndpoint(addr) == nil &&
		a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0
}

// defaultLinks returns the indexes of the interfaces with a default route.
func defaultLinks(family service.Family) ([]int, error) {
	routes, err := dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlinkFamily(family)) })
	if err != nil {
		return nil, fmt.Errorf("list %s routes of this host: %w", family, err)
	}
	var links []int
	for _, r := range routes {
		if r.Dst != nil {
			if ones, _ := r.Dst.Mask.Size(); ones > 0 {
				continue
			}
		}
		links = append(links, r.LinkIndex)
		for _, hop := range r.MultiPath {
			links = append(links, hop.LinkIndex)
		}
	}
	return links, nil
}

// dump lists again when the kernel says that the list changed while it was read
// (NLM_F_DUMP_INTR), so that some entries may be missing.
func dump[T any](list func() ([]T, error)) (items []T, err error) {
	for range 5 {
		items, err = list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return items, err
}

func netlinkFamily(family service.Family) int {
	if family == service.IPv6 {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}
