package service

import (
	"cmp"
	"net/netip"
)

// Protocol is the transport protocol of a Service port, in the lower case that
// iptables and the connection log use.
type Protocol string

// The protocols kube-splice can relay. SCTP is never relayed.
const (
	TCP Protocol = "tcp"
	UDP Protocol = "udp"
)

// Family is an IP family. A dual-stack Service port is two Ports, one a family,
// as two kube-proxy proxiers would see it: the endpoints of one family never
// serve clients of the other.
type Family uint8

// The IP families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// String returns "IPv4" or "IPv6".
func (f Family) String() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// Unspecified returns 0.0.0.0 or ::.
func (f Family) Unspecified() netip.Addr {
	if f == IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// FamilyOf returns the family of addr; an IPv4-mapped IPv6 address is IPv4.
func FamilyOf(addr netip.Addr) Family {
	if addr.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// Name identifies one Service port in one IP family. It is the key of every
// table in the program: rules, listeners, balancers, affinity, metrics.
type Name struct {
	Namespace string
	Service   string
	Port      string // the port's name; empty for a Service's only, unnamed port
	Protocol  Protocol
	Family    Family
}

// String returns "namespace/service:port", or "namespace/service" when the port
// has no name: the form of the historical ServicePortName, which the rule
// comments and the connection log use. Protocol and family are not part of it.
func (n Name) String() string {
	if n.Port == "" {
		return n.Namespace + "/" + n.Service
	}
	return n.Namespace + "/" + n.Service + ":" + n.Port
}

// Compare orders names by namespace, service, port, protocol and family.
func (n Name) Compare(m Name) int {
	return cmp.Or(
		cmp.Compare(n.Namespace, m.Namespace),
		cmp.Compare(n.Service, m.Service),
		cmp.Compare(n.Port, m.Port),
		cmp.Compare(n.Protocol, m.Protocol),
		cmp.Compare(n.Family, m.Family),
	)
}
