package datagram_test

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/proxy/datagram"
)

// FuzzControl reads arbitrary bytes as control messages, behind and before some that
// are well-formed.
func FuzzControl(f *testing.F) {
	f.Add([]byte(nil), uint8(0xb8), true)
	f.Add(datagram.AppendSegment(nil, 1200), uint8(1), false)
	f.Add([]byte{16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}, uint8(3), true)                        // IP_TOS without a value
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 1, 0, 0, 0}, uint8(3), true) // longer than memory
	f.Fuzz(func(t *testing.T, noise []byte, tos uint8, is4 bool) {
		local := netip.MustParseAddr("fd00:88::11").As16()
		if is4 {
			local = netip.MustParseAddr("10.88.0.11").As16()
		}
		formed := datagram.AppendTOS(datagram.AppendLocal(nil, local), is4, tos)
		if a := datagram.ParseControl(formed); a.Local() != local || a.TOS() != tos {
			t.Errorf("wrote %v and %d, read %+v", local, tos, a)
		}
		got := datagram.ParseControl(append(formed, noise...))
		if known, err := unix.ParseSocketControlMessage(noise); err == nil && len(known) == 0 && got.Local() != local {
			t.Errorf("noise behind the messages changed them to %+v", got)
		}
		datagram.ParseControl(noise)
		for cut := range formed {
			datagram.ParseControl(formed[:cut])
		}
	})
}

// FuzzConntrackAnswer reads arbitrary bytes as an answer of ctnetlink.
func FuzzConntrackAnswer(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(make([]byte, 20))
	f.Add([]byte("\x34\x00\x00\x00\x00\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00" + // headers
		"\x20\x00\x01\x80" + "\x0c\x00\x01\x80" + "\x08\x00\x02\x00\x0a\x60\x00\x0a" + // 10.96.0.10
		"\x0c\x00\x02\x80" + "\x06\x00\x03\x00\x00\x35\x00\x00")) // 53
	f.Fuzz(func(t *testing.T, answer []byte) {
		original, err := datagram.ParseAnswer(answer)
		if (err == nil) != original.IsValid() {
			t.Errorf("read %v, and %v", original, err)
		}
	})
}
