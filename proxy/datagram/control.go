package datagram

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// controlSize is room for every control message that our sockets ask for, or send:
// the local address, the traffic class, a segment size or an error, in IPv6, where they
// are longest.
const controlSize = 192

// ancillary is what a datagram's control messages say about it.
type ancillary struct {
	local   ip     // where it came to; zero when not said
	tos     uint8  // the TOS byte or traffic class
	segment int    // the size of the datagrams that the kernel joined to this one (UDP_GRO); 0: it is one
	errno   uint32 // from the error queue: what happened to it
}

// parseControl reads control messages as the kernel wrote them (cmsg(3)). What it
// does not know, or is cut off, it leaves out.
func parseControl(b []byte) (a ancillary) {
	header := unix.CmsgLen(0)
	for len(b) >= header {
		size, level, kind := parseHeader(b)
		if size < header || size > len(b) {
			return a
		}
		a.read(level, kind, b[header:size])
		b = b[min(unix.CmsgSpace(size-header), len(b)):]
	}
	return a
}

// parseHeader reads a struct cmsghdr, whose first field is as long as a pointer.
func parseHeader(b []byte) (size, level, kind int) {
	rest := b[unix.SizeofCmsghdr-8:]
	if unix.SizeofCmsghdr == 16 {
		size = int(min(binary.NativeEndian.Uint64(b), 1<<30))
	} else {
		size = int(min(binary.NativeEndian.Uint32(b), 1<<30))
	}
	return size, int(int32(binary.NativeEndian.Uint32(rest))), int(int32(binary.NativeEndian.Uint32(rest[4:])))
}

func (a *ancillary) read(level, kind int, data []byte) {
	word := func() int { // most are an int; IP_TOS is a byte
		if len(data) < 4 {
			return 0
		}
		return int(int32(binary.NativeEndian.Uint32(data)))
	}
	switch {
	case level == unix.IPPROTO_IP && kind == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
		a.local = netip.AddrFrom4([4]byte(data[4:8])).As16() // ipi_spec_dst
	case level == unix.IPPROTO_IPV6 && kind == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
		a.local = ip(data)
	case level == unix.IPPROTO_IP && kind == unix.IP_TOS && len(data) > 0:
		a.tos = data[0]
	case level == unix.IPPROTO_IPV6 && kind == unix.IPV6_TCLASS:
		a.tos = uint8(word())
	case level == unix.SOL_UDP && kind == unix.UDP_GRO:
		a.segment = max(word(), 0)
	case level == unix.IPPROTO_IP && kind == unix.IP_RECVERR, level == unix.IPPROTO_IPV6 && kind == unix.IPV6_RECVERR:
		a.errno = uint32(word()) // the first field of a struct sock_extended_err
	}
}

func appendControl(b []byte, level, kind int, data []byte) []byte {
	size := unix.CmsgLen(len(data))
	if unix.SizeofCmsghdr == 16 {
		b = binary.NativeEndian.AppendUint64(b, uint64(size))
	} else {
		b = binary.NativeEndian.AppendUint32(b, uint32(size))
	}
	b = binary.NativeEndian.AppendUint32(b, uint32(level))
	b = binary.NativeEndian.AppendUint32(b, uint32(kind))
	b = append(b, data...)
	return append(b, make([]byte, unix.CmsgSpace(len(data))-size)...)
}

// appendLocal makes a datagram leave from the address a.
func appendLocal(b []byte, a ip) []byte {
	if addr := a.addr(); addr.Is4() {
		var info [unix.SizeofInet4Pktinfo]byte
		four := addr.As4()
		copy(info[4:], four[:]) // ipi_spec_dst
		return appendControl(b, unix.IPPROTO_IP, unix.IP_PKTINFO, info[:])
	}
	var info [unix.SizeofInet6Pktinfo]byte
	copy(info[:], a[:])
	return appendControl(b, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, info[:])
}

// appendTOS gives a datagram its TOS byte or traffic class.
func appendTOS(b []byte, is4 bool, tos uint8) []byte {
	level, kind := unix.IPPROTO_IPV6, unix.IPV6_TCLASS
	if is4 {
		level, kind = unix.IPPROTO_IP, unix.IP_TOS
	}
	var value [4]byte
	binary.NativeEndian.PutUint32(value[:], uint32(tos))
	return appendControl(b, level, kind, value[:])
}

// appendSegment makes the kernel cut what is sent into datagrams of that size.
func appendSegment(b []byte, size int) []byte {
	var value [2]byte
	binary.NativeEndian.PutUint16(value[:], uint16(size))
	return appendControl(b, unix.SOL_UDP, unix.UDP_SEGMENT, value[:])
}
