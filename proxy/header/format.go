package header

import (
	"fmt"
	"net"

	"github.com/pires/go-proxyproto"
)

// Format returns h as the bytes to send, in version 1 or 2. It fails if h has no addresses,
// or the version is another.
func (h Header) Format(version uint8) ([]byte, error) {
	if version != 1 && version != 2 {
		return nil, fmt.Errorf("write a PROXY header: there is no version %d", version)
	}
	if !h.Source.IsValid() || !h.Destination.IsValid() {
		return nil, fmt.Errorf("write a PROXY header: the addresses %v and %v are not both known", h.Source, h.Destination)
	}
	raw := proxyproto.HeaderProxyFromAddrs(version, net.TCPAddrFromAddrPort(h.Source), net.TCPAddrFromAddrPort(h.Destination))
	var tlvs []proxyproto.TLV
	if h.UniqueID != "" {
		tlvs = append(tlvs, proxyproto.TLV{Type: proxyproto.PP2_TYPE_UNIQUE_ID, Value: []byte(h.UniqueID)})
	}
	if h.VPCEndpoint != "" {
		tlvs = append(tlvs, proxyproto.TLV{Type: typeAWS, Value: append([]byte{subtypeVPCEndpoint}, h.VPCEndpoint...)})
	}
	if err := raw.SetTLVs(tlvs); err != nil {
		return nil, fmt.Errorf("write a PROXY header: %w", err)
	}
	b, err := raw.Format()
	if err != nil {
		return nil, fmt.Errorf("write a PROXY header: %w", err)
	}
	return b, nil
}
