package datagram

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// nameSize is the room that the longer kind of socket address takes.
const nameSize = unix.SizeofSockaddrInet6

// ip is an address of either family, an IPv4 one in its IPv6 form: 16 bytes without
// the pointer that a netip.Addr has.
type ip [16]byte

func (a ip) addr() netip.Addr { return netip.AddrFrom16(a).Unmap() }

// peer is an address and port.
type peer struct {
	ip   ip
	port uint16
}

func peerOf(a netip.AddrPort) peer { return peer{a.Addr().As16(), a.Port()} }

func (p peer) addrPort() netip.AddrPort { return netip.AddrPortFrom(p.ip.addr(), p.port) }

// withScope returns the address with the interface of that index, if any, as its zone.
func withScope(a netip.AddrPort, scope uint32) netip.AddrPort {
	if scope == 0 {
		return a
	}
	return netip.AddrPortFrom(a.Addr().WithZone(strconv.FormatUint(uint64(scope), 10)), a.Port())
}

// parseName reads a socket address as the kernel wrote it: ip(7), ipv6(7). The scope
// is the index of the interface that a link-local address belongs to, else 0.
func parseName(name []byte) (p peer, scope uint32, ok bool) {
	if len(name) < unix.SizeofSockaddrInet4 {
		return p, 0, false
	}
	p.port = binary.BigEndian.Uint16(name[2:])
	switch family := binary.NativeEndian.Uint16(name); {
	case family == unix.AF_INET:
		p.ip = netip.AddrFrom4([4]byte(name[4:8])).As16()
	case family == unix.AF_INET6 && len(name) >= unix.SizeofSockaddrInet6:
		p.ip = ip(name[8:24])
		scope = binary.NativeEndian.Uint32(name[24:])
	default:
		return p, 0, false
	}
	return p, scope, true
}

// appendName appends the socket address of p for a socket of p's family.
func appendName(b []byte, p peer, scope uint32) []byte {
	if a := p.ip.addr(); a.Is4() {
		b = binary.NativeEndian.AppendUint16(b, unix.AF_INET)
		b = binary.BigEndian.AppendUint16(b, p.port)
		four := a.As4()
		b = append(b, four[:]...)
		return append(b, make([]byte, 8)...)
	}
	b = binary.NativeEndian.AppendUint16(b, unix.AF_INET6)
	b = binary.BigEndian.AppendUint16(b, p.port)
	b = append(b, 0, 0, 0, 0) // flow label
	b = append(b, p.ip[:]...)
	return binary.NativeEndian.AppendUint32(b, scope)
}

// sockaddr returns a for package unix.
func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
