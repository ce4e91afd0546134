package redirect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/kube-splice/kube-splice/service"
)

// Mark is the fwmark, value and mask, that the proxy sets on its own sockets
// (SO_MARK). The OUTPUT chains let marked packets pass untouched, so that an
// endpoint whose address is itself a Service address cannot loop.
const Mark = 0x2000

// Rules is the whole desired state.
type Rules struct {
	// Bindings are the portals to lead. When two ask for the same address, port
	// and protocol, the first one has it; one that is told apart by Clients is one.
	Bindings []service.Binding
	// NodeIPs are this node's own addresses as its Node object gives them, the
	// primary one of each family first; may be empty.
	NodeIPs []netip.Addr
	// Pods tells the clients inside from those outside. The node itself is always
	// inside.
	Pods PodTraffic
	// Preserve are the families of which connections are to be dialled from the client's
	// own address, sorted.
	Preserve []service.Family
}

// Equal reports whether r and s say the same.
func (r Rules) Equal(s Rules) bool {
	return slices.Equal(r.Bindings, s.Bindings) && slices.Equal(r.NodeIPs, s.NodeIPs) && r.Pods.equal(s.Pods) && slices.Equal(r.Preserve, s.Preserve)
}

// The historical chains. A reader of old articles finds what they describe.
const (
	portalsContainer  = "KUBE-PORTALS-CONTAINER"
	portalsHost       = "KUBE-PORTALS-HOST"
	nodePortContainer = "KUBE-NODEPORT-CONTAINER"
	nodePortHost      = "KUBE-NODEPORT-HOST"
	nodePortNonLocal  = "KUBE-NODEPORT-NON-LOCAL"
)

// tables are the tables that hold our chains in any case, in the order they are written:
// node ports are let in before packets are sent their way. Table mangle may too, see
// answers.go.
var tables = []string{"filter", "nat"}

// chains are our chains of each table.
var chains = map[string][]string{
	"filter": {nodePortNonLocal},
	"nat":    {portalsContainer, portalsHost, nodePortContainer, nodePortHost},
	"mangle": {clientDialled, clientAnswers},
}

// ruleset holds the lines of our chains, by chain, as iptables-save prints them.
type ruleset map[string][]string

// renderer turns the Bindings of one family into lines.
type renderer struct {
	family service.Family
	// host is the node's address that rules for the node's own traffic lead to;
	// invalid when the node has none of this family.
	host netip.Addr
	// tracked says that the rules have had a reason to track connections before.
	tracked bool
	// pods are where packets of pods come from.
	pods []source
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

// order returns the bindings of r's family, each address, port, protocol and
// clients once, sorted in this order. All of an address, port and protocol are of
// the portal that was first.
func (r renderer) order(bindings []service.Binding) []service.Binding {
	type front struct {
		addr   netip.Addr
		number uint16
		proto  service.Protocol
	}
	type owner struct {
		name service.Name
		kind service.Kind
	}
	type share struct {
		front
		clients service.Clients
	}
	owners := make(map[front]owner, len(bindings))
	seen := make(map[share]bool, len(bindings))
	ordered := make([]service.Binding, 0, len(bindings))
	for _, b := range bindings {
		if b.Name.Family != r.family {
			continue
		}
		b.Portal.Addr = b.Portal.Addr.Unmap()
		f, its := front{b.Portal.Addr, b.Portal.Number, b.Name.Protocol}, owner{b.Name, b.Portal.Kind}
		if first, taken := owners[f]; taken && first != its || seen[share{f, b.Portal.Clients}] {
			continue
		}
		owners[f], seen[share{f, b.Portal.Clients}] = its, true
		ordered = append(ordered, b)
	}
	slices.SortFunc(ordered, func(a, b service.Binding) int {
		return cmp.Or(
			a.Portal.Addr.Compare(b.Portal.Addr),
			cmp.Compare(a.Portal.Number, b.Portal.Number),
			cmp.Compare(a.Name.Protocol, b.Name.Protocol),
			cmp.Compare(a.Portal.Clients, b.Portal.Clients), // inside before outside
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
//
// The filter sees no difference between clients: a node port's listeners are all
// let through.
func (r renderer) add(set ruleset, b service.Binding) {
	container, host := portalsContainer, portalsHost
	if b.Portal.Kind == service.NodePort {
		container, host = nodePortContainer, nodePortHost
		set[nodePortNonLocal] = append(set[nodePortNonLocal], accept(b))
	}
	incoming, own := r.targets(b)
	for _, from := range r.comingFrom(b.Portal.Clients) {
		set[container] = append(set[container], line(container, b, from, incoming))
	}
	if b.Portal.Clients != service.Outside {
		set[host] = append(set[host], line(host, b, source{}, own))
	}
}

// comingFrom returns the sources of packets that come to the node from those
// clients. Rules for clients outside need none: they stand behind those for clients
// inside. The node's own packets do not come by here, though loopback carries them
// through PREROUTING: nat is asked once a connection, and OUTPUT was first.
func (r renderer) comingFrom(clients service.Clients) []source {
	if clients == service.Inside {
		return r.pods
	}
	return everywhere
}

var everywhere = []source{{}}

// targets returns the targets for traffic that comes to the node and for its own.
func (r renderer) targets(b service.Binding) (incoming, own string) {
	port := b.Listener.Port()
	if addr := b.Listener.Addr(); !addr.IsUnspecified() {
		dnat := "DNAT --to-destination " + netip.AddrPortFrom(addr.Unmap(), port).String()
		return dnat, dnat
	}
	incoming = "REDIRECT --to-ports " + strconv.Itoa(int(port))
	if !r.host.IsValid() {
		return incoming, incoming
	}
	return incoming, "DNAT --to-destination " + netip.AddrPortFrom(r.host, port).String()
}

// line renders a nat rule for a portal. The order of the matches is the one in
// which iptables-save prints them.
func line(chain string, b service.Binding, from source, target string) string {
	dest := ""
	if b.Portal.Kind != service.NodePort {
		dest = " -d " + netip.PrefixFrom(b.Portal.Addr, b.Portal.Addr.BitLen()).String()
	}
	return "-A " + chain + from.addr + dest + from.iface + ports(b, b.Portal.Number) + " -j " + target
}

// accept renders the filter rule that lets connections to a node port through an
// INPUT chain that drops by default. The filter sees the listener's port, since
// nat has rewritten the packet by then.
func accept(b service.Binding) string {
	return "-A " + nodePortNonLocal + ports(b, b.Listener.Port()) + " -m conntrack --ctstate NEW -j ACCEPT"
}

func ports(b service.Binding, number uint16) string {
	proto := string(b.Name.Protocol)
	return " -p " + proto + ` -m comment --comment "` + listenerName(b).String() + `" -m ` + proto +
		" --dport " + strconv.Itoa(int(number))
}

// listenerName names the listener that b leads to.
func listenerName(b service.Binding) service.ListenerName {
	return service.ListenerName{Name: b.Name, Scope: b.Portal.Scope}
}
