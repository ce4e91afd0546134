package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/kube-splice/kube-splice/service"
)

// PortRange is an inclusive range of port numbers. The zero value means none.
type PortRange struct{ First, Last uint16 }

// ParsePortRange reads the forms of the historical --proxy-port-range: "a-b",
// "a+n" (n ports after a), "a"; "", "0" and "0-0" are the zero value.
func ParsePortRange(s string) (PortRange, error) {
	s = strings.TrimSpace(s)
	if s == "" || s == "0" || s == "0-0" {
		return PortRange{}, nil
	}
	at := strings.IndexAny(s, "-+")
	first, last, sep := s, s, byte('-')
	if at >= 0 {
		first, last, sep = s[:at], s[at+1:], s[at]
	}
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	if sep == '+' {
		b += a
	}
	if errA != nil || errB != nil || a == 0 || b < a || b > 65535 {
		return PortRange{}, fmt.Errorf("port range %q: want FIRST-LAST, FIRST+COUNT or one port, from 1 to 65535", s)
	}
	return PortRange{uint16(a), uint16(b)}, nil
}

// String returns "first-last", or "" for the zero value.
func (r PortRange) String() string {
	if r == (PortRange{}) {
		return ""
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

var errNoPortLeft = errors.New("no port is free in the range")

// portPool is where listener ports come from.
type portPool struct {
	PortRange
	had   map[service.ListenerName]uint16 // in an earlier life, and not taken up or lost yet
	kept  map[uint16]bool                 // promised to the listeners that had them
	avoid map[uint16]bool                 // node ports
	later bool                            // the first Snapshot has been seen
}

// newPortPool returns the pool of a configured range, or of the kernel's ephemeral
// one. Ports of an earlier life outside of a configured range are not kept.
func newPortPool(r PortRange, had map[service.ListenerName]uint16) portPool {
	pool := portPool{PortRange: r, had: maps.Clone(had)}
	if r == (PortRange{}) {
		pool.PortRange = ephemeralRange()
		return pool
	}
	maps.DeleteFunc(pool.had, func(_ service.ListenerName, port uint16) bool { return port < r.First || r.Last < port })
	return pool
}

// plan promises the ports of an earlier life to the listeners that had them and that
// the first Snapshot still calls for, and keeps off the node ports.
func (r *portPool) plan(wanted []*service.Port) {
	had := r.had
	if !r.later {
		r.had, r.later = map[service.ListenerName]uint16{}, true
	}
	r.kept, r.avoid = map[uint16]bool{}, map[uint16]bool{}
	for _, port := range wanted {
		for scope := range service.Scope(service.Scopes) {
			name := service.ListenerName{Name: port.Name, Scope: scope}
			if number, before := had[name]; before && usesScope(port.Portals(), scope) {
				r.had[name] = number
				r.kept[number] = true
			}
		}
		r.avoid[port.NodePort] = true
	}
}

// listen has a listener opened: at the port the one of that name had if that is
// free, else at the first free one from a random place on. Ports are always asked
// for by number; see park.
func (r *portPool) listen(name service.ListenerName, open func(port uint16) error) error {
	if before, had := r.had[name]; had {
		err := open(before)
		if err == nil || errors.Is(err, syscall.EADDRINUSE) {
			delete(r.had, name) // taken up, or lost to another program
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	size := int(r.Last) - int(r.First) + 1
	start := rand.IntN(size)
	for i := range size {
		port := r.First + uint16((start+i)%size)
		if r.kept[port] || r.avoid[port] {
			continue
		}
		if err := open(port); err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	return fmt.Errorf("%w %v (--proxy-port-range)", errNoPortLeft, r.PortRange)
}

func listenTCP(ctx context.Context, lc *net.ListenConfig, at netip.AddrPort) (*net.TCPListener, error) {
	network := "tcp4"
	if at.Addr().Is6() {
		network = "tcp6"
	}
	ln, err := lc.Listen(ctx, network, at.String())
	if err == nil {
		return ln.(*net.TCPListener), nil
	}
	// net's own error names the port, which is a matter of chance and would make
	// the same trouble look new at every try.
	if cause := new(os.SyscallError); errors.As(err, &cause) {
		err = cause
	}
	return nil, notOurAddress(at.Addr(), fmt.Errorf("listen on %v: %w", at.Addr(), err))
}

// notOurAddress says of an error in listening at an address how to mend it, if that is
// known.
func notOurAddress(addr netip.Addr, err error) error {
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("%v is no address of this node (--bind-address): %w", addr, err)
	}
	return err
}
