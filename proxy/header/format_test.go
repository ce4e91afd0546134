package header_test

import (
	"bufio"
	"bytes"
	"net/netip"
	"testing"

	"github.com/pires/go-proxyproto"
	"github.com/pires/go-proxyproto/tlvparse"

	"github.com/kube-splice/kube-splice/proxy/header"
)

func between(source, destination string) header.Header {
	return header.Header{Source: netip.MustParseAddrPort(source), Destination: netip.MustParseAddrPort(destination)}
}

func TestWrittenHeadersAreThoseOfTheProtocol(t *testing.T) {
	named, plain := between(client4, server4), between(client6, server6)
	named.UniqueID, named.VPCEndpoint = "a1", "vpce-2"
	for name, c := range map[string]struct {
		header  header.Header
		version uint8
		want    []byte
	}{
		"v1 TCP4, which has no TLVs": {named, 1, []byte("PROXY TCP4 192.0.2.7 198.51.100.8 5555 443\r\n")},
		"v1 TCP6":                    {plain, 1, []byte("PROXY TCP6 2001:db8::7 2001:db8::8 5555 443\r\n")},
		"v1 of both families":        {between(client4, server6), 1, []byte("PROXY TCP6 ::ffff:192.0.2.7 2001:db8::8 5555 443\r\n")},
		"v2 TCP4 and TLVs":           {named, 2, v2(0x21, 0x11, ends4, tlv(0x05, []byte("a1")), tlv(0xea, []byte("\x01vpce-2")))},
		"v2 TCP6":                    {plain, 2, v2(0x21, 0x21, ends6)},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.header.Format(c.version)
			if err != nil || !bytes.Equal(got, c.want) {
				t.Errorf("written as %q (%v), want %q", got, err, c.want)
			}
		})
	}
}

func TestVPCEndpointIsFoundWhereAmazonPutsIt(t *testing.T) {
	h := between(client4, server4)
	h.VPCEndpoint = "vpce-08d2bf15fac5001c9"
	b, err := h.Format(2)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := proxyproto.Read(bufio.NewReader(bytes.NewReader(b)))
	if err != nil {
		t.Fatal(err)
	}
	tlvs, err := raw.TLVs()
	if id := tlvparse.FindAWSVPCEndpointID(tlvs); err != nil || id != h.VPCEndpoint {
		t.Errorf("found %q (%v), want %q", id, err, h.VPCEndpoint)
	}
}

func TestHeaderThatSaysNothingIsNotWritten(t *testing.T) {
	for version, h := range map[uint8]header.Header{
		1: {}, 2: {Source: netip.MustParseAddrPort(client4)}, 0: between(client4, server4), 3: between(client4, server4),
	} {
		if b, err := h.Format(version); err == nil {
			t.Errorf("%+v in version %d is written as %q, want an error", h, version, b)
		}
	}
}
