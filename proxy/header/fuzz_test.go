package header_test

import (
	"bytes"
	"testing"

	"github.com/kube-splice/kube-splice/proxy/header"
)

// Whatever comes: the size is within the bytes, neither pieces nor payload change what is
// read, and what is read can be written and read again.
func FuzzParse(f *testing.F) {
	for _, c := range readable {
		f.Add(c.bytes, uint16(len(c.bytes)/2))
	}
	f.Add([]byte("PROXY TCP4 192.0.2.7 198.51.100.8 5555 443\nGET /"), uint16(7))
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		h, size, err := header.Parse(b)
		if size < 0 || size > len(b) || size > header.MaxSize || err != nil && (size != 0 || h != (header.Header{})) {
			t.Fatalf("size %d of %d bytes, %+v, %v", size, len(b), h, err)
		}
		if err == nil && size == 0 && len(b) >= header.MaxSize {
			t.Fatalf("%d bytes are not enough", len(b))
		}
		early, some, cutErr := header.Parse(b[:min(int(cut), len(b))])
		switch {
		case cutErr != nil && err == nil:
			t.Fatalf("refused after %d bytes (%v), and not after %d", cut, cutErr, len(b))
		case some > 0 && (some != size || early != h):
			t.Fatalf("the first %d bytes are %+v, size %d; all are %+v, size %d", cut, early, some, h, size)
		case some == 0 && cutErr == nil && size > 0 && int(cut) >= size:
			t.Fatalf("a header of %d bytes is not found in %d", size, cut)
		}
		if size == 0 {
			return
		}
		if again, n, err := header.Parse(bytes.Clone(b[:size])); again != h || n != size || err != nil {
			t.Fatalf("without payload %+v, size %d, %v; with it %+v, size %d", again, n, err, h, size)
		}
		if !h.Source.IsValid() {
			return
		}
		written, err := h.Format(2)
		if err != nil {
			t.Fatal(err)
		}
		if again, n, err := header.Parse(written); again != h || n != len(written) || err != nil {
			t.Fatalf("%+v is written as %q and read as %+v, size %d, %v", h, written, again, n, err)
		}
	})
}
