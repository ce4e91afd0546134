package header_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-splice/kube-splice/proxy/header"
)

const signature = "\r\n\r\n\x00\r\nQUIT\n"

// v2 returns a header of version 2.
func v2(command, family byte, rest ...[]byte) []byte {
	b := append([]byte(signature), command, family, 0, 0)
	b = append(b, bytes.Join(rest, nil)...)
	binary.BigEndian.PutUint16(b[14:], uint16(len(b)-16))
	return b
}

func tlv(kind byte, value []byte) []byte {
	return append([]byte{kind, byte(len(value) >> 8), byte(len(value))}, value...)
}

// summed puts the right CRC32c into a header that has a TLV of zeros for it at its end.
func summed(b []byte) []byte {
	binary.BigEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

var (
	ends4 = []byte{192, 0, 2, 7, 198, 51, 100, 8, 0x15, 0xb3, 0x01, 0xbb} // ports 5555, 443
	ends6 = append(append(netip.MustParseAddr("2001:db8::7").AsSlice(), netip.MustParseAddr("2001:db8::8").AsSlice()...), ends4[8:]...)
	tlvs  = bytes.Join([][]byte{tlv(0x02, []byte("example.com")), tlv(0x05, []byte("id\x00\xff")), tlv(0x04, make([]byte, 600)), tlv(0xea, []byte("\x01vpce-1"))}, nil)
	sum   = tlv(0x03, make([]byte, 4))
)

const (
	client4, server4 = "192.0.2.7:5555", "198.51.100.8:443"
	client6, server6 = "[2001:db8::7]:5555", "[2001:db8::8]:443"
)

// readable are headers, and what they say.
var readable = map[string]struct {
	bytes               []byte
	source, destination string // empty: the socket's own
	id                  string
}{
	"v1 TCP4":                {[]byte("PROXY TCP4 192.0.2.7 198.51.100.8 5555 443\r\n"), client4, server4, ""},
	"v1 TCP6":                {[]byte("PROXY TCP6 2001:db8::7 2001:db8::8 5555 443\r\n"), client6, server6, ""},
	"v1 TCP6 written long":   {[]byte("PROXY TCP6 2001:0db8:0000:0000:0000:0000:0000:0007 2001:db8:0:0:0:0:0:8 5555 443\r\n"), client6, server6, ""},
	"v1 TCP6 mapped":         {[]byte("PROXY TCP6 ::ffff:192.0.2.7 ::ffff:198.51.100.8 5555 443\r\n"), client4, server4, ""},
	"v1 ports 0 and 65535":   {[]byte("PROXY TCP4 192.0.2.7 198.51.100.8 0 65535\r\n"), "192.0.2.7:0", "198.51.100.8:65535", ""},
	"v1 UNKNOWN":             {[]byte("PROXY UNKNOWN\r\n"), "", "", ""},
	"v1 UNKNOWN, the most":   {[]byte("PROXY UNKNOWN " + strings.Repeat("f", 91) + "\r\n"), "", "", ""},
	"v2 TCP4":                {v2(0x21, 0x11, ends4), client4, server4, ""},
	"v2 TCP4 and TLVs":       {v2(0x21, 0x11, ends4, tlvs), client4, server4, "id\x00\xff"},
	"v2 TCP6":                {v2(0x21, 0x21, ends6), client6, server6, ""},
	"v2 TCP6 and TLVs":       {v2(0x21, 0x21, ends6, tlvs), client6, server6, "id\x00\xff"},
	"v2 TCP4 and its CRC":    {summed(v2(0x21, 0x11, ends4, tlvs, sum)), client4, server4, "id\x00\xff"},
	"v2 TCP4, an empty TLV":  {v2(0x21, 0x11, ends4, tlv(0x04, nil)), client4, server4, ""},
	"v2 TCP4, the most":      {v2(0x21, 0x11, ends4, tlv(0x04, make([]byte, 4096-12-3))), client4, server4, ""},
	"v2 LOCAL without bytes": {v2(0x20, 0x00), "", "", ""},
	"v2 LOCAL of TCP4":       {v2(0x20, 0x11, ends4), "", "", ""},
	"v2 LOCAL of TCP4, none": {v2(0x20, 0x11), "", "", ""},
	"v2 LOCAL, any bytes":    {v2(0x20, 0x00, bytes.Repeat([]byte{0xff}, 12)), "", "", ""},
	"v2 LOCAL and TLVs":      {v2(0x20, 0x11, ends4, tlvs), "", "", ""},
	"v2 UNSPEC":              {v2(0x21, 0x00), "", "", ""},
	"v2 UNSPEC and TLVs":     {v2(0x21, 0x00, tlvs), "", "", ""},
	"v2 UNSPEC and its CRC":  {summed(v2(0x21, 0x00, sum)), "", "", ""},
	"v2 UDP4":                {v2(0x21, 0x12, ends4), "", "", ""},
	"v2 Unix":                {v2(0x21, 0x31, make([]byte, 216), tlv(0x05, []byte("id"))), "", "", "id"},
}

func text(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func TestHeadersAreReadWhole(t *testing.T) {
	for name, c := range readable {
		t.Run(name, func(t *testing.T) {
			for _, payload := range []string{"", "hi", "\n", "PROXY TCP4 1.2.3.4 1.2.3.4 1 1\r\n", strings.Repeat("x", 8192)} {
				h, size, err := header.Parse(append(bytes.Clone(c.bytes), payload...))
				if err != nil || size != len(c.bytes) {
					t.Fatalf("%d bytes are the header (%v), want %d", size, err, len(c.bytes))
				}
				if text(h.Source) != c.source || text(h.Destination) != c.destination || h.UniqueID != c.id {
					t.Errorf("read %+v, want %s, %s, id %q", h, c.source, c.destination, c.id)
				}
			}
		})
	}
}

func TestHeaderMayComeInPieces(t *testing.T) {
	for name, c := range readable {
		for n := range c.bytes {
			if _, size, err := header.Parse(c.bytes[:n]); size != 0 || err != nil {
				t.Errorf("%s: after %d of %d bytes: size %d, %v, want that more has to come", name, n, len(c.bytes), size, err)
			}
		}
	}
}

func TestWhatIsNoHeaderIsRefused(t *testing.T) {
	wrongSum := summed(v2(0x21, 0x11, ends4, sum))
	wrongSum[17]++ // the client's address
	for name, c := range map[string]struct {
		bytes []byte
		err   error
	}{
		"HTTP":                   {[]byte("G"), header.ErrNoHeader},
		"TLS":                    {[]byte{0x16}, header.ErrNoHeader},
		"PRI of HTTP/2":          {[]byte("PRI"), header.ErrNoHeader},
		"lower case":             {[]byte("proxy"), header.ErrNoHeader},
		"v1 and no space":        {[]byte("PROXYTCP4"), header.ErrNoHeader},
		"v1 that does not end":   {[]byte("PROXY " + strings.Repeat("x", 101)), header.ErrTooLong},
		"v1 that ends too late":  {[]byte("PROXY UNKNOWN " + strings.Repeat("f", 92) + "\r\n"), header.ErrTooLong},
		"v1 by LF alone":         {[]byte("PROXY TCP4 192.0.2.7 198.51.100.8 5555 443\n"), header.ErrNoHeader},
		"v1 with more":           {[]byte("PROXY TCP4 192.0.2.7 198.51.100.8 5555 443 1\r\n"), header.ErrNoHeader},
		"v1 with less":           {[]byte("PROXY TCP4 192.0.2.7 198.51.100.8 5555\r\n"), header.ErrNoHeader},
		"v1 with two spaces":     {[]byte("PROXY  TCP4 192.0.2.7 198.51.100.8 5555 443\r\n"), header.ErrNoHeader},
		"v1 of UDP":              {[]byte("PROXY UDP4 192.0.2.7 198.51.100.8 5555 443\r\n"), header.ErrNoHeader},
		"v1 port 65536":          {[]byte("PROXY TCP4 192.0.2.7 198.51.100.8 5555 65536\r\n"), header.ErrNoHeader},
		"v1 port -1":             {[]byte("PROXY TCP4 192.0.2.7 198.51.100.8 -1 443\r\n"), header.ErrNoHeader},
		"v1 port +1":             {[]byte("PROXY TCP4 192.0.2.7 198.51.100.8 +1 443\r\n"), header.ErrNoHeader},
		"v1 port 0443":           {[]byte("PROXY TCP4 192.0.2.7 198.51.100.8 5555 0443\r\n"), header.ErrNoHeader},
		"v1 no port":             {[]byte("PROXY TCP4 192.0.2.7 198.51.100.8  443\r\n"), header.ErrNoHeader},
		"v1 IPv6 as TCP4":        {[]byte("PROXY TCP4 2001:db8::7 2001:db8::8 5555 443\r\n"), header.ErrNoHeader},
		"v1 IPv4 as TCP6":        {[]byte("PROXY TCP6 192.0.2.7 198.51.100.8 5555 443\r\n"), header.ErrNoHeader},
		"v1 half of each family": {[]byte("PROXY TCP4 192.0.2.7 2001:db8::8 5555 443\r\n"), header.ErrNoHeader},
		"v1 zeros in front":      {[]byte("PROXY TCP4 192.000.2.7 198.51.100.8 5555 443\r\n"), header.ErrNoHeader},
		"v1 with a zone":         {[]byte("PROXY TCP6 fe80::1%eth0 2001:db8::8 5555 443\r\n"), header.ErrNoHeader},
		"v2 of version 1":        {v2(0x11, 0x11, ends4), header.ErrNoHeader},
		"v2 of command 2":        {v2(0x22, 0x11, ends4), header.ErrNoHeader},
		"v2 of transport 3":      {v2(0x21, 0x13, ends4), header.ErrNoHeader},
		"v2 of family 4":         {v2(0x21, 0x41, ends4), header.ErrNoHeader},
		"v2 too short for TCP4":  {v2(0x21, 0x11, ends4[:11]), header.ErrNoHeader},
		"v2 too short for TCP6":  {v2(0x21, 0x21, ends6[:35]), header.ErrNoHeader},
		"v2 too long":            {v2(0x21, 0x11, make([]byte, 4097))[:16], header.ErrTooLong},
		"v2, half a TLV":         {v2(0x21, 0x11, ends4, []byte{0x04, 0x00}), header.ErrTLV},
		"v2, TLV past the end":   {v2(0x21, 0x11, ends4, []byte{0x04, 0x00, 0x02, 0x00}), header.ErrTLV},
		"v2, CRC of 3 bytes":     {v2(0x21, 0x11, ends4, tlv(0x03, make([]byte, 3))), header.ErrTLV},
		"v2, wrong CRC":          {wrongSum, header.ErrChecksum},
		"v2 UNSPEC, wrong CRC":   {v2(0x21, 0x00, sum), header.ErrChecksum},
		"v2, ID too long":        {v2(0x21, 0x11, ends4, tlv(0x05, make([]byte, 129))), header.ErrTLV},
	} {
		t.Run(name, func(t *testing.T) {
			for _, payload := range []string{"", "hi"} {
				h, size, err := header.Parse(append(bytes.Clone(c.bytes), payload...))
				if !errors.Is(err, c.err) || size != 0 || h != (header.Header{}) {
					t.Errorf("read %+v, size %d, %v, want %v", h, size, err, c.err)
				}
			}
		})
	}
}
