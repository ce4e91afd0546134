package redirect

import (
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// links knows by which interface this node reaches an address. The kernel is asked once a
// second for each: that takes two system calls and 64 KB of memory, which is much for a
// connection.
type links struct {
	routes *netlink.Handle

	mu    sync.Mutex
	known map[netip.Addr]int
	since time.Time // when known was last empty
}

const (
	linksAge  = time.Second
	mostLinks = 4096
)

// thisNode is the answer for the node's own addresses; interfaces have indexes above 0.
const thisNode = -1

func openLinks() (*links, error) {
	routes, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &links{routes: routes, known: map[netip.Addr]int{}}, nil
}

// to returns the index of the interface that leads to an address; 0: none does.
func (l *links) to(addr netip.Addr) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.since) >= linksAge || len(l.known) >= mostLinks {
		clear(l.known)
		l.since = now
	}
	index, known := l.known[addr]
	if !known {
		index = l.ask(addr)
		l.known[addr] = index
	}
	return index
}

func (l *links) ask(addr netip.Addr) int {
	found, err := l.routes.RouteGet(addr.AsSlice())
	switch {
	case err != nil || len(found) == 0:
		return 0
	case found[0].Type == unix.RTN_LOCAL:
		return thisNode
	}
	return found[0].LinkIndex
}
