package redirect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-splice/kube-splice/service"
)

// Mark is the fwmark, value and mask, that the proxy sets on its own sockets
// (SO_MARK). The OUTPUT chains let marked packets pass untouched, so that an
// endpoint whose address is itself a Service address cannot loop.
const Mark = 0x2000

// Rules is the whole desired state.
type Rules struct {
	// Bindings are the portals to lead. When two ask for the same address, port
	// and protocol, the first one has it.
	Bindings []service.Binding
	// NodeIPs are this node's own addresses as its Node object gives them, the
	// primary one of each family first; may be empty.
	NodeIPs []netip.Addr
}

// The historical chains. A reader of old articles finds what they describe.
const (
	portalsContainer  = "KUBE-PORTALS-CONTAINER"
	portalsHost       = "KUBE-PORTALS-HOST"
	nodePortContainer = "KUBE-NODEPORT-CONTAINER"
	nodePortHost      = "KUBE-NODEPORT-HOST"
	nodePortNonLocal  = "KUBE-NODEPORT-NON-LOCAL"
)

// tables are the tables that hold our chains, in the order they are written:
// node ports are let in before packets are sent their way.
var tables = []string{"filter", "nat"}

// chains are our chains of each table.
var chains = map[string][]string{
	"filter": {nodePortNonLocal},
	"nat":    {portalsContainer, portalsHost, nodePortContainer, nodePortHost},
}

// ruleset holds the lines of our chains, by chain, as iptables-save prints them.
type ruleset map[string][]string

// renderer turns the Bindings of one family into lines.
type renderer struct {
	family service.Family
	// host is the node's address that rules for the node's own traffic lead to;
	// invalid when the node has none of this family.
	host netip.Addr
	// physdev says that the kernel can tell packets that entered by a bridge port.
	physdev bool
	// tracked says that the rules have had a reason to track connections before.
	tracked bool
}

// render returns the lines of every chain of ours. A Binding that cannot be
// written is left out and returned as an error.
func (r renderer) render(bindings []service.Binding) (ruleset, []error) {
	own := "-m mark --mark " + markText + " -j RETURN"
	set := ruleset{
		portalsContainer:  nil,
		portalsHost:       {"-A " + portalsHost + " " + own},
		nodePortContainer: nil,
		nodePortHost:      {"-A " + nodePortHost + " " + own},
		nodePortNonLocal:  nil,
	}
	ordered := r.order(bindings)
	if r.tracked || len(ordered) > 0 {
		set[nodePortNonLocal] = []string{keepTracking}
	}
	var refused []error
	for _, b := range ordered {
		if err := check(b); err != nil {
			refused = append(refused, err)
			continue
		}
		r.add(set, b)
	}
	return set, refused
}

// keepTracking keeps the kernel tracking connections when the last Service of a
// family has gone. It stops when no rule asks for it, and the addresses of
// connections that were let finish would not be translated any more.
const keepTracking = "-A " + nodePortNonLocal + " -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"

var markText = fmt.Sprintf("%#x/%#x", Mark, Mark)

// order returns the bindings of r's family, each address, port and protocol
// once, sorted by address, port, protocol.
func (r renderer) order(bindings []service.Binding) []service.Binding {
	type front struct {
		addr   netip.Addr
		number uint16
		proto  service.Protocol
	}
	seen := make(map[front]bool, len(bindings))
	ordered := make([]service.Binding, 0, len(bindings))
	for _, b := range bindings {
		b.Portal.Addr = b.Portal.Addr.Unmap()
		f := front{b.Portal.Addr, b.Portal.Number, b.Name.Protocol}
		if b.Name.Family != r.family || seen[f] {
			continue
		}
		seen[f] = true
		ordered = append(ordered, b)
	}
	slices.SortFunc(ordered, func(a, b service.Binding) int {
		return cmp.Or(
			a.Portal.Addr.Compare(b.Portal.Addr),
			cmp.Compare(a.Portal.Number, b.Portal.Number),
			cmp.Compare(a.Name.Protocol, b.Name.Protocol),
		)
	})
	return ordered
}

// add writes the lines of one portal.
//
// Traffic of pods and other hosts is REDIRECTed: that rewrites the destination
// to the address of the interface the packet came in by, so a reply leaves from
// the address that was asked. Traffic of the node itself cannot be: REDIRECT
// would lead it to loopback while its source stays an outer address, so it is
// DNATed to an outer address of the node.
func (r renderer) add(set ruleset, b service.Binding) {
	outside, inside := r.targets(b)
	put := func(chain, extra, target string) {
		set[chain] = append(set[chain], line(chain, b, extra, target))
	}
	switch b.Portal.Kind {
	case service.NodePort:
		put(nodePortContainer, "", outside)
		put(nodePortHost, "", inside)
		set[nodePortNonLocal] = append(set[nodePortNonLocal], accept(b))
	case service.ExternalIP:
		put(portalsContainer, r.fromOutside(), outside)
		put(portalsContainer, " -m addrtype --dst-type LOCAL", outside)
		put(portalsHost, " -m addrtype --dst-type LOCAL", inside)
	default:
		put(portalsContainer, "", outside)
		put(portalsHost, "", inside)
	}
}

// fromOutside is the match for traffic that is not of this node's pods. An
// externalIP that is no address of the node belongs to something outside, and
// pods are to reach it there. Where the kernel cannot tell bridge ports, pods
// are caught too: they reach the same Service, only sooner.
func (r renderer) fromOutside() string {
	if r.physdev {
		return " -m physdev ! --physdev-is-in"
	}
	return " -m addrtype ! --src-type LOCAL"
}

// targets returns the targets for traffic from outside the node and from inside.
func (r renderer) targets(b service.Binding) (outside, inside string) {
	port := b.Listener.Port()
	if addr := b.Listener.Addr(); !addr.IsUnspecified() {
		dnat := "DNAT --to-destination " + netip.AddrPortFrom(addr.Unmap(), port).String()
		return dnat, dnat
	}
	outside = "REDIRECT --to-ports " + strconv.Itoa(int(port))
	if !r.host.IsValid() {
		return outside, outside
	}
	return outside, "DNAT --to-destination " + netip.AddrPortFrom(r.host, port).String()
}

// line renders a nat rule for a portal. The order of the matches is the one in
// which iptables-save prints them.
func line(chain string, b service.Binding, extra, target string) string {
	dest := ""
	if b.Portal.Kind != service.NodePort {
		dest = " -d " + netip.PrefixFrom(b.Portal.Addr, b.Portal.Addr.BitLen()).String()
	}
	return "-A " + chain + dest + ports(b, b.Portal.Number) + extra + " -j " + target
}

// accept renders the filter rule that lets connections to a node port through an
// INPUT chain that drops by default. The filter sees the listener's port, since
// nat has rewritten the packet by then.
func accept(b service.Binding) string {
	return "-A " + nodePortNonLocal + ports(b, b.Listener.Port()) + " -m conntrack --ctstate NEW -j ACCEPT"
}

func ports(b service.Binding, number uint16) string {
	proto := string(b.Name.Protocol)
	return " -p " + proto + ` -m comment --comment "` + b.Name.String() + `" -m ` + proto +
		" --dport " + strconv.Itoa(int(number))
}

func mentionsPhysdev(set ruleset) bool {
	return slices.ContainsFunc(set[portalsContainer], func(line string) bool {
		return strings.Contains(line, "-m physdev ")
	})
}
