package proxy

import (
	"encoding/binary"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/service"
)

// ip6tSOOriginalDst is IP6T_SO_ORIGINAL_DST of <linux/netfilter_ipv6/ip6_tables.h>,
// which x/sys does not name.
const ip6tSOOriginalDst = 80

// originalDestination returns the address and port the client asked for before a
// REDIRECT or DNAT rule changed them. For a connection no rule changed it is the
// local address. It fails when the kernel does not track the connection.
//
// An IPv4 client on a dual-stack socket (a mapped address) is asked for by the
// IPv4 option.
func originalDestination(fd int, family service.Family) (original netip.AddrPort, err error) {
	if family == service.IPv4 {
		original, err = originalIPv4(fd)
	} else {
		original, err = originalIPv6(fd)
	}
	return original, os.NewSyscallError("getsockopt SO_ORIGINAL_DST", err)
}

// originalIPv4 reads the sockaddr_in that SO_ORIGINAL_DST returns. x/sys has no
// getsockopt for it; an IPv6Mreq has the right size to carry its 16 bytes.
func originalIPv4(fd int) (netip.AddrPort, error) {
	mreq, err := unix.GetsockoptIPv6Mreq(fd, unix.SOL_IP, unix.SO_ORIGINAL_DST)
	if err != nil {
		return netip.AddrPort{}, err
	}
	b := mreq.Multiaddr // family (2 bytes), port (2, network order), address (4), padding
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3])), nil
}

// originalIPv6 reads the sockaddr_in6, carried by the IPv6MTUInfo that begins
// with one.
func originalIPv6(fd int) (netip.AddrPort, error) {
	info, err := unix.GetsockoptIPv6MTUInfo(fd, unix.SOL_IPV6, ip6tSOOriginalDst)
	if err != nil {
		return netip.AddrPort{}, err
	}
	var port [2]byte // network order, whatever this machine's is
	binary.NativeEndian.PutUint16(port[:], info.Addr.Port)
	return netip.AddrPortFrom(netip.AddrFrom16(info.Addr.Addr), binary.BigEndian.Uint16(port[:])), nil
}
