package header

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/pires/go-proxyproto"
)

// What Amazon's load balancers say of themselves.
const (
	typeAWS            = proxyproto.PP2Type(0xEA)
	subtypeVPCEndpoint = 1
)

const tlvHead = 3 // bytes: type, length

// readTLVs reads what a header of version 2 has from at on.
func readTLVs(b []byte, at int, h *Header) error {
	for at < len(b) {
		if len(b)-at < tlvHead {
			return ErrTLV
		}
		kind, from := proxyproto.PP2Type(b[at]), at+tlvHead
		at = from + int(binary.BigEndian.Uint16(b[at+1:]))
		if at > len(b) {
			return ErrTLV
		}
		switch value := b[from:at]; kind {
		case proxyproto.PP2_TYPE_CRC32C:
			if len(value) != crc32.Size {
				return ErrTLV
			}
			if binary.BigEndian.Uint32(value) != checksum(b, from) {
				return ErrChecksum
			}
		case proxyproto.PP2_TYPE_UNIQUE_ID:
			if len(value) > longestID {
				return ErrTLV
			}
			h.UniqueID = string(value)
		}
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum returns the CRC32c of a header whose own place for it, at an offset, counts as
// zeros.
func checksum(b []byte, at int) uint32 {
	sum := crc32.Update(0, castagnoli, b[:at])
	sum = crc32.Update(sum, castagnoli, make([]byte, crc32.Size))
	return crc32.Update(sum, castagnoli, b[at+crc32.Size:])
}
