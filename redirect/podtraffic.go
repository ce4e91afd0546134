package redirect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-splice/kube-splice/service"
)

// PodTraffic says how packets of this cluster's pods are told from others, as
// kube-proxy's local detector does: a packet is a pod's if one of the two fits. With
// the zero value pods cannot be told, and count as outside.
type PodTraffic struct {
	// CIDRs are where pods have their addresses, of both families.
	CIDRs []netip.Prefix
	// Interface is by which packets of this node's pods come in; one that ends in "+"
	// stands for all whose names begin so, as in iptables(8). Empty: none.
	Interface string
}

// longestInterface is the longest name of an interface, in bytes: the kernel's
// IFNAMSIZ less its final zero.
const longestInterface = 15

// Check returns why no rule can match packets by p.Interface, in one line.
func (p PodTraffic) Check() error {
	name := p.Interface
	odd := func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune("\"'\\`!/:", c) }
	switch {
	case len(name) > longestInterface:
		return fmt.Errorf("match pods by interface %.100q: the name has %d bytes, an interface's has %d at most", name, len(name), longestInterface)
	case name == "+":
		return fmt.Errorf("match pods by interface %q: it would match every interface", name)
	case strings.HasPrefix(name, "-") || strings.ContainsFunc(name, odd):
		return fmt.Errorf("match pods by interface %q: a rule cannot carry that name", name)
	}
	return nil
}

// equal reports whether p and q say the same.
func (p PodTraffic) equal(q PodTraffic) bool {
	return p.Interface == q.Interface && slices.Equal(p.CIDRs, q.CIDRs)
}

// source is the matches of a rule by where packets come from, as iptables-save
// prints them; the zero value is from everywhere.
type source struct{ addr, iface string }

// sources returns what packets of pods of one family match, each source once.
func (p PodTraffic) sources(family service.Family) []source {
	var sources []source
	for _, cidr := range p.CIDRs {
		if !cidr.IsValid() || cidr.Addr().Is4() != (family == service.IPv4) {
			continue
		}
		s := source{addr: " -s " + cidr.Masked().String()}
		if cidr.Bits() == 0 {
			s = source{} // what iptables makes of it
		}
		if !slices.Contains(sources, s) {
			sources = append(sources, s)
		}
	}
	if p.Interface != "" {
		sources = append(sources, source{iface: " -i " + p.Interface})
	}
	return sources
}
