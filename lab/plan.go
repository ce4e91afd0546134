package lab

import (
	"fmt"
	"net/netip"
)

// The addresses of the lab's machines that tests and lessons name most often.
const (
	NodeIP       = "172.20.1.2"
	NodeIPv6     = "fd00:172:20:1::2"
	NodeSecondIP = "172.20.1.5" // also on the node's uplink
	Node2IP      = "172.20.2.2"
	OutsideIP    = "172.20.9.2"
	OutsideIPv6  = "fd00:172:20:9::2"

	ServiceCIDR   = "10.96.0.0/16" // routed to the node by every router
	ServiceCIDRv6 = "fd00:10:96::/112"
)

// The names of the machines that are not pods.
const (
	node    = "node"
	node2   = "node2"
	router  = "router"
	outside = "outside"
)

// machine is what one namespace of the lab is to hold.
type machine struct {
	name     string
	pod      bool
	forwards bool
	bridge   []netip.Prefix // addresses of cbr0; none: no bridge
	links    []link
	routes   []route
}

// link is one veth pair, described at the end that is called eth0.
type link struct {
	addrs []netip.Prefix
	peer  string // the machine at the other end

	peerAddrs []netip.Prefix // addresses of the other end; none: it is a port of the peer's cbr0
}

// route leads to dst through the neighbor via.
type route struct {
	dst netip.Prefix
	via netip.Addr
}

// plan lists the machines of a lab; doc.go has its picture.
func plan(config Config) []machine {
	pods := config.Pods
	if pods == 0 {
		pods = 3
	}
	machines := []machine{
		theRouter(config.OneNode),
		host(node, 1, NodeSecondIP+"/24", "fd00:172:20:1::5/64"),
		{
			name:   outside,
			links:  []link{uplink(9, OutsideIP+"/24", OutsideIPv6+"/64")},
			routes: defaultBy("172.20.9.1", "fd00:172:20:9::1"),
		},
	}
	for i := range pods {
		machines = append(machines, pod("pod-"+string(rune('a'+i)), node, 1, 11+i))
	}
	if !config.OneNode {
		machines = append(machines, host(node2, 2), pod("pod-d", node2, 2, 11), pod("pod-e", node2, 2, 12))
	}
	return append(machines, pod("client", node, 1, 50))
}

// theRouter joins the networks of the nodes and the outside. It knows which node
// has which pods, and leads Service addresses to the first node.
func theRouter(oneNode bool) machine {
	m := machine{name: router, forwards: true}
	m.routes = append(routes(NodeIP, "10.244.1.0/24", ServiceCIDR),
		routes(NodeIPv6, "fd00:10:244:1::/64", ServiceCIDRv6)...)
	if !oneNode {
		m.routes = append(m.routes, routes(Node2IP, "10.244.2.0/24")...)
		m.routes = append(m.routes, routes("fd00:172:20:2::2", "fd00:10:244:2::/64")...)
	}
	return m
}

// host is the node with the given number: a bridge for its pods and an uplink to
// the router, which may have more addresses.
func host(name string, number int, more ...string) machine {
	addrs := append([]string{fmt.Sprintf("172.20.%d.2/24", number), fmt.Sprintf("fd00:172:20:%d::2/64", number)}, more...)
	return machine{
		name:     name,
		forwards: true,
		bridge:   bridgeAddrs(number),
		links:    []link{uplink(number, addrs...)},
		routes:   defaultBy(fmt.Sprintf("172.20.%d.1", number), fmt.Sprintf("fd00:172:20:%d::1", number)),
	}
}

// uplink leads to the router, in the network with the given number.
func uplink(number int, addrs ...string) link {
	return link{
		addrs:     prefixes(addrs...),
		peer:      router,
		peerAddrs: prefixes(fmt.Sprintf("172.20.%d.1/24", number), fmt.Sprintf("fd00:172:20:%d::1/64", number)),
	}
}

// pod is a pod on a node, with last as the last number of its addresses.
func pod(name, on string, nodeNumber, last int) machine {
	bridge := bridgeAddrs(nodeNumber)
	return machine{
		name: name,
		pod:  true,
		links: []link{{
			addrs: prefixes(fmt.Sprintf("10.244.%d.%d/24", nodeNumber, last),
				fmt.Sprintf("fd00:10:244:%d::%d/64", nodeNumber, last)),
			peer: on,
		}},
		routes: defaultBy(bridge[0].Addr().String(), bridge[1].Addr().String()),
	}
}

func bridgeAddrs(nodeNumber int) []netip.Prefix {
	return prefixes(fmt.Sprintf("10.244.%d.1/24", nodeNumber), fmt.Sprintf("fd00:10:244:%d::1/64", nodeNumber))
}

func defaultBy(via4, via6 string) []route {
	return append(routes(via4, "0.0.0.0/0"), routes(via6, "::/0")...)
}

func routes(via string, dsts ...string) []route {
	var rs []route
	for _, dst := range prefixes(dsts...) {
		rs = append(rs, route{dst: dst, via: netip.MustParseAddr(via)})
	}
	return rs
}

func prefixes(texts ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, text := range texts {
		ps = append(ps, netip.MustParsePrefix(text))
	}
	return ps
}
