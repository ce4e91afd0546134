// Package header reads and writes the headers of PROXY protocol, versions 1 and 2, by which
// a proxy tells the server behind it who its client is
// (https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt).
//
// Everything here is a function of bytes: [Parse] is shown what a connection began with, as
// often as more of it has come, and says how much of that is the header. It is strict: a
// header that can be read in two ways is read in none.
//
// The package does not read from sockets, know who may be believed, or wait. Of the
// historical kube-proxy it answers to nothing, which hid every client's address.
package header

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/pires/go-proxyproto"
)

// Header is what a proxy says about the connection of its client.
type Header struct {
	// Source and Destination are the ends of that connection, IPv4-mapped addresses as
	// IPv4. They are zero where the header leaves it at those of the socket it came by: for
	// a connection of the proxy's own (LOCAL), or one that is not of TCP.
	Source, Destination netip.AddrPort
	// UniqueID names the connection in the logs of all proxies it passes, in 1 to 128 bytes
	// of whatever kind; empty: it has no name. Version 1 has no room for it.
	UniqueID string
	// VPCEndpoint is the endpoint's ID in the TLV of Amazon's load balancers (type 0xEA,
	// subtype 1). It is written, and not read.
	VPCEndpoint string
}

const (
	longestV1 = 107 // what the protocol allows, with CR LF
	fixedV2   = 16  // bytes before the addresses
	longestID = 128 // what the protocol allows
	// MaxSize is how many bytes a header has at the most. Version 2 allows 64 KiB; what is
	// in use are a few hundred bytes, and some 2 KiB with a client's certificate.
	MaxSize = fixedV2 + 4096
)

// Why bytes are no header.
var (
	ErrNoHeader = errors.New("not a PROXY header")
	ErrTooLong  = errors.New("a PROXY header that is too long")
	ErrTLV      = errors.New("a PROXY header with a broken TLV")
	ErrChecksum = errors.New("a PROXY header with a wrong checksum")
)

var (
	signatureV1 = []byte("PROXY ")
	signatureV2 = proxyproto.SIGV2
)

// Parse reads the header that a connection begins with, b being all that has come of it. It
// returns the header and its size; the size 0 without an error means that more has to come.
// As soon as b cannot become a header, Parse returns an error. It does not keep b.
func Parse(b []byte) (Header, int, error) {
	size, err := sizeOf(b)
	if err != nil || size == 0 || size > len(b) {
		return Header{}, 0, err
	}
	h, err := read(b[:size])
	if err != nil {
		return Header{}, 0, err
	}
	return h, size, nil
}

// sizeOf returns how long the header is that b begins with; 0: that is not known yet.
func sizeOf(b []byte) (int, error) {
	switch {
	case mayBegin(b, signatureV1):
		line, _, ended := bytes.Cut(b[:min(len(b), longestV1)], []byte{'\n'})
		switch {
		case ended:
			return len(line) + 1, nil
		case len(b) >= longestV1:
			return 0, ErrTooLong
		}
		return 0, nil
	case mayBegin(b, signatureV2):
		if len(b) < fixedV2 {
			return 0, nil
		}
		size := fixedV2 + int(binary.BigEndian.Uint16(b[fixedV2-2:]))
		if size > MaxSize {
			return 0, ErrTooLong
		}
		return size, nil
	}
	return 0, ErrNoHeader
}

func mayBegin(b, signature []byte) bool {
	n := min(len(b), len(signature))
	return bytes.Equal(b[:n], signature[:n])
}

// read reads a whole header.
func read(b []byte) (Header, error) {
	v2 := b[0] == signatureV2[0]
	if v2 && b[12] == byte(proxyproto.PROXY) && b[13] == byte(proxyproto.UNSPEC) {
		return Header{}, readTLVs(b, fixedV2, &Header{}) // which the library refuses
	}
	// The library wants the whole line in its reader's buffer.
	raw, err := proxyproto.Read(bufio.NewReaderSize(bytes.NewReader(b), longestV1))
	if err != nil {
		return Header{}, fmt.Errorf("%w: %w", ErrNoHeader, err)
	}
	if raw.Command.IsLocal() {
		return Header{}, nil // whatever else it has means nothing
	}
	var h Header
	if v2 {
		if err := readTLVs(b, fixedV2+addressesSize(raw), &h); err != nil {
			return Header{}, err
		}
	}
	if source, destination, isTCP := raw.TCPAddrs(); isTCP {
		h.Source, h.Destination = addrPort(source), addrPort(destination)
	}
	return h, nil
}

// addressesSize returns how many bytes the addresses of version 2 take.
func addressesSize(raw *proxyproto.Header) int {
	switch {
	case raw.TransportProtocol.IsIPv4():
		return 12
	case raw.TransportProtocol.IsIPv6():
		return 36
	default:
		return 216 // of Unix sockets
	}
}

func addrPort(a *net.TCPAddr) netip.AddrPort {
	ap := a.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
