package datagram

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// lookups is a netlink socket that asks for single entries, one by one. The kernel
// answers while it is asked, so nobody waits and two system calls are all: some
// microseconds, where package conntrack, which has to be prepared for answers
// that come later, takes 50 to 100. That is what lets a Router ask.
type lookups struct {
	fd       int
	sequence uint32
	buf      []byte
}

func openLookups() (lookups, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	return lookups{fd: fd, buf: make([]byte, 8192)}, os.NewSyscallError("socket", err)
}

// ErrUntracked is returned by Original for what conntrack does not know.
var ErrUntracked = errors.New("not in the conntrack table")

// Original returns where client sent the datagrams that reached us at local. For a
// client that no rule led here it is local itself. It is quick enough for a Router.
func (c *Conntrack) Original(client, local netip.AddrPort) (netip.AddrPort, error) {
	found, err := c.lookups.original(client, local)
	if err != nil {
		return found, fmt.Errorf("find where %v sent to: %w", client, err)
	}
	return found, nil
}

func (s *lookups) original(client, local netip.AddrPort) (netip.AddrPort, error) {
	s.sequence++
	if _, err := unix.Write(s.fd, appendQuestion(s.buf[:0], s.sequence, client, local)); err != nil {
		return netip.AddrPort{}, os.NewSyscallError("write", err)
	}
	for {
		n, err := unix.Read(s.fd, s.buf)
		if err != nil {
			return netip.AddrPort{}, os.NewSyscallError("read", err)
		}
		if n >= unix.SizeofNlMsghdr && binary.NativeEndian.Uint32(s.buf[8:]) == s.sequence {
			return parseAnswer(s.buf[:n])
		}
	}
}

// Attributes of ctnetlink, from <linux/netfilter/nfnetlink_conntrack.h>.
const (
	tupleOriginal, tupleReply                     = 1, 2
	tupleIP, tupleProto                           = 1, 2
	ip4Source, ip4Target, ip6Source, ip6Target    = 1, 2, 3, 4
	protoNumber, protoSourcePort, protoTargetPort = 1, 2, 3
	getEntry                                      = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
)

// appendQuestion asks for the entry that local's answers to client belong to: the
// kernel finds an entry by what either side sends.
func appendQuestion(b []byte, sequence uint32, client, local netip.AddrPort) []byte {
	family, source, target := byte(unix.AF_INET6), uint16(ip6Source), uint16(ip6Target)
	if client.Addr().Is4() {
		family, source, target = unix.AF_INET, ip4Source, ip4Target
	}
	b = append(b, make([]byte, unix.SizeofNlMsghdr)...)
	b = append(b, family, 0, 0, 0) // struct nfgenmsg
	b = nest(b, tupleReply, func(b []byte) []byte {
		b = nest(b, tupleIP, func(b []byte) []byte {
			return appendAttribute(appendAttribute(b, source, local.Addr().AsSlice()), target, client.Addr().AsSlice())
		})
		return nest(b, tupleProto, func(b []byte) []byte {
			b = appendAttribute(b, protoNumber, []byte{unix.IPPROTO_UDP})
			b = appendAttribute(b, protoSourcePort, binary.BigEndian.AppendUint16(nil, local.Port()))
			return appendAttribute(b, protoTargetPort, binary.BigEndian.AppendUint16(nil, client.Port()))
		})
	})
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], getEntry)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(b[8:], sequence)
	return b
}

// nest appends an attribute that is made of what content appends.
func nest(b []byte, kind uint16, content func([]byte) []byte) []byte {
	start := len(b)
	b = content(appendAttribute(b, unix.NLA_F_NESTED|kind, nil))
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

func appendAttribute(b []byte, kind uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(data)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, data...)
	return append(b, make([]byte, -len(data)&3)...)
}

// parseAnswer reads where the client of the entry sent to.
func parseAnswer(b []byte) (netip.AddrPort, error) {
	const body = unix.SizeofNlMsghdr + 4 // with a struct nfgenmsg
	if len(b) < body {
		return netip.AddrPort{}, errShort
	}
	if binary.NativeEndian.Uint16(b[4:]) == unix.NLMSG_ERROR {
		errno := unix.Errno(-int32(binary.NativeEndian.Uint32(b[unix.SizeofNlMsghdr:])))
		if errno == unix.ENOENT {
			return netip.AddrPort{}, ErrUntracked
		}
		return netip.AddrPort{}, errno
	}
	tuple := attribute(b[body:], tupleOriginal)
	address, proto := attribute(tuple, tupleIP), attribute(tuple, tupleProto)
	target := attribute(address, ip4Target)
	if target == nil {
		target = attribute(address, ip6Target)
	}
	addr, ok := netip.AddrFromSlice(target)
	port := attribute(proto, protoTargetPort)
	if !ok || len(port) != 2 {
		return netip.AddrPort{}, errShort
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(port)), nil
}

var errShort = errors.New("the kernel's answer lacks something")

// attribute returns the data of the first attribute of that kind, nil if there is none.
func attribute(b []byte, kind uint16) []byte {
	for len(b) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == kind {
			return b[unix.SizeofNlAttr:size]
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}
