// Package redirect leads packets from portals, the addresses at which clients
// ask for a Service port, to the listeners of the proxy.
//
// It writes iptables rules in the five chains the historical kube-proxy had, for
// IPv4 and IPv6, into whichever of the two kernel interfaces (nft or legacy) the
// node uses. It is handed the whole desired state each time, reads what the
// kernel has, and writes only what differs: a lost, altered, doubled or foreign
// line in its chains is put right, and a state already in force writes nothing.
//
//	nat     KUBE-PORTALS-CONTAINER   from PREROUTING, first: pods and other hosts
//	nat     KUBE-PORTALS-HOST        from OUTPUT, first: programs of this node
//	nat     KUBE-NODEPORT-CONTAINER  from PREROUTING, last
//	nat     KUBE-NODEPORT-HOST       from OUTPUT, last
//	filter  KUBE-NODEPORT-NON-LOCAL  from INPUT, first: lets node ports through
//
// Where pods are to see clients' own addresses, two chains in table mangle, a routing rule and
// a route bring the answers here; answers.go has them.
//
// Portals come before node ports because a portal may be an address of the node
// itself, and its port may equal the nodePort of another Service.
//
// A portal that leads clients inside and outside to different listeners has rules for
// the packets of pods, by source address or interface, before the rule for all others.
// The node's own packets are always inside.
//
// The package opens no sockets, chooses no endpoints and adds no masquerading:
// the proxy dials backends itself. It never decides which portals exist; it
// writes those it is given. It does not touch chains of others, except to put
// its own jumps into the three built-in chains above.
//
// It answers to the iptables half of pkg/proxy/userspace/proxier.go in the
// historical kube-proxy, with these differences: it serves both IP families,
// honours node port addresses, lets the proxy's own marked sockets pass, leads to an
// externalIP of another machine as to any other portal instead of leaving it to that
// machine, and writes each chain in one transaction instead of one command a rule.
package redirect
