package redirect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/service"
)

// NodePortAddresses are the addresses of this node that answer on node ports. A
// family for which nothing is given answers on all of them; so the zero value is
// all addresses of both.
type NodePortAddresses struct {
	cidrs   []netip.Prefix
	primary bool
}

// localhost is what the word stands for, in each family.
var localhost = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// ParseNodePortAddresses reads what kube-proxy's --nodeport-addresses takes: CIDRs
// and the words "primary", the node's primary address of each family, "localhost",
// its loopback addresses, and "all", no restriction whatever else is given. The
// error is one line that names the entry.
func ParseNodePortAddresses(entries []string) (NodePortAddresses, error) {
	var a NodePortAddresses
	all := false
	for _, entry := range entries {
		switch entry = strings.TrimSpace(entry); entry {
		case "all":
			all = true
		case "primary":
			a.primary = true
		case "localhost":
			a.cidrs = append(a.cidrs, localhost...)
		default:
			cidr, err := netip.ParsePrefix(entry)
			if err != nil || cidr.Addr().Is4In6() {
				return NodePortAddresses{}, fmt.Errorf("node port address %q: want a CIDR such as %s, or primary, localhost or all", entry, example(entry))
			}
			a.cidrs = append(a.cidrs, cidr.Masked())
		}
	}
	if all {
		return NodePortAddresses{}, nil
	}
	return a, nil
}

// example is a CIDR like the one that was meant, if that can be told.
func example(entry string) string {
	if addr, err := netip.ParseAddr(entry); err == nil && addr.Zone() == "" {
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()).String()
	}
	return "192.0.2.0/24"
}

// Addresses returns the addresses of one family that this host has now and that answer
// on node ports, but for link-local ones, sorted; the unspecified one alone stands for
// all. nodeIPs are those of Rules.
func (a NodePortAddresses) Addresses(family service.Family, nodeIPs []netip.Addr) ([]netip.Addr, error) {
	if !a.primary && len(a.cidrs) == 0 { // as for nearly everybody
		return []netip.Addr{family.Unspecified()}, nil
	}
	host, err := hostAddress(family, nodeIPs)
	if err != nil {
		return nil, err
	}
	wanted := a.destinations(family, host, nodeIPs)
	if slices.ContainsFunc(wanted, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
		return []netip.Addr{family.Unspecified()}, nil
	}
	all, err := addresses(family)
	if err != nil {
		return nil, err
	}
	var found []netip.Addr
	for _, its := range all {
		addr := its.addr
		in := func(p netip.Prefix) bool { return p.Contains(addr) }
		if slices.ContainsFunc(wanted, in) && its.Flags&unix.IFA_F_DADFAILED == 0 && !addr.IsLinkLocalUnicast() {
			found = append(found, addr)
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return slices.Compact(found), nil
}

// destinations returns what packets to node ports of one family may be sent to; a
// zero-length prefix is every address. The primary address is the Node object's
// first of the family, or else host.
func (a NodePortAddresses) destinations(family service.Family, host netip.Addr, nodeIPs []netip.Addr) []netip.Prefix {
	var dests []netip.Prefix
	add := func(p netip.Prefix) {
		if !slices.Contains(dests, p) {
			dests = append(dests, p)
		}
	}
	if a.primary {
		primary := host
		for _, ip := range slices.Backward(nodeIPs) {
			if service.FamilyOf(ip) == family {
				primary = ip.Unmap()
			}
		}
		if primary.IsValid() {
			add(netip.PrefixFrom(primary, primary.BitLen()))
		}
	}
	for _, cidr := range a.cidrs {
		if service.FamilyOf(cidr.Addr()) == family {
			add(cidr)
		}
	}
	if len(dests) == 0 && !a.primary {
		add(netip.PrefixFrom(family.Unspecified(), 0))
	}
	return dests
}
