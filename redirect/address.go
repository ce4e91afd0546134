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
// lead to: the Node object's if this host has it, else one that lasts, of the
// interface with the default route if there is one. The result is invalid, without
// an error, when this host has no address of the family but loopback and
// link-local ones.
func hostAddress(family service.Family, nodeIPs []netip.Addr) (netip.Addr, error) {
	links, err := defaultLinks(family)
	if err != nil {
		return netip.Addr{}, err
	}
	all, err := addresses(family)
	if err != nil {
		return netip.Addr{}, err
	}
	best, bestRank := netip.Addr{}, -1
	for _, a := range all {
		addr := a.addr
		if !usable(a) {
			continue
		}
		rank := 0
		if lasts(a) {
			rank += 2
		}
		if slices.Contains(links, a.LinkIndex) {
			rank++
		}
		if i := slices.IndexFunc(nodeIPs, func(ip netip.Addr) bool { return ip.Unmap() == addr }); i >= 0 {
			rank = len(nodeIPs) - i + 3 // the first is the node's primary one
		}
		if rank > bestRank {
			best, bestRank = addr, rank
		}
	}
	return best, nil
}

// address is an address of this host.
type address struct {
	netlink.Addr
	addr netip.Addr
}

// addresses returns the addresses that this host has of a family.
func addresses(family service.Family) ([]address, error) {
	listed, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlinkFamily(family)) })
	if err != nil {
		return nil, fmt.Errorf("list %s addresses of this host: %w", family, err)
	}
	var all []address
	for _, a := range listed {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			all = append(all, address{a, addr.Unmap()})
		}
	}
	return all, nil
}

// usable reports whether packets may be led to a. An IPv6 address that is known
// not to be unique does not answer.
func usable(a address) bool {
	return service.CheckEndpoint(a.addr) == nil && a.Flags&unix.IFA_F_DADFAILED == 0
}

// lasts reports whether a answers already and is to stay: not one for privacy
// that is replaced every day (RFC 8981), on its way out, or not yet known to be
// unique (RFC 4862). In IPv4 the temporary flag means a second address of a network.
func lasts(a address) bool {
	passing := unix.IFA_F_DEPRECATED | unix.IFA_F_TENTATIVE
	if a.addr.Is6() {
		passing |= unix.IFA_F_TEMPORARY
	}
	return a.Flags&passing == 0
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
