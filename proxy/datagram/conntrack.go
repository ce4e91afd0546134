package datagram

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"
)

// Conntrack asks the kernel's connection tracking what its NAT did to datagrams. A TCP
// socket tells where its client wanted to go (SO_ORIGINAL_DST); the kernel has no such
// thing for UDP. It is for one goroutine, belongs to the network namespace of the
// thread that opened it, and needs CAP_NET_ADMIN. The caller closes it.
type Conntrack struct {
	conn    *conntrack.Conn // for Forget
	lookups lookups         // for Original
}

// OpenConntrack opens it. It fails where the kernel has no ctnetlink.
func OpenConntrack() (*Conntrack, error) {
	conn, err := conntrack.Dial(nil)
	if err != nil {
		return nil, fmt.Errorf("open conntrack (needs nf_conntrack_netlink and CAP_NET_ADMIN): %w", err)
	}
	lookups, err := openLookups()
	if err != nil {
		return nil, fmt.Errorf("open conntrack: %w", errors.Join(err, conn.Close()))
	}
	return &Conntrack{conn, lookups}, nil
}

// Close closes c.
func (c *Conntrack) Close() error { return errors.Join(c.conn.Close(), unix.Close(c.lookups.fd)) }

// original is where the client of an entry sent to.
func original(entry conntrack.Flow) netip.AddrPort {
	return netip.AddrPortFrom(entry.TupleOrig.IP.DestinationAddress, entry.TupleOrig.Proto.DestinationPort)
}

// Forget deletes the UDP entries that stale names, by where the client sent to and by
// where NAT leads that, and returns how many there were. An entry pins its client to
// what a rule said when it was made, so one that leads to an old listener port must go
// for the client to reach the new one. Nothing else is touched, except that an entry
// made anew meanwhile may go too, to be made again by the next datagram. It reads the
// whole table, once.
func (c *Conntrack) Forget(stale func(original, now netip.AddrPort) bool) (int, error) {
	entries, err := c.conn.Dump(nil)
	if err != nil {
		return 0, fmt.Errorf("read the conntrack table: %w", err)
	}
	deleted := 0
	for _, entry := range entries {
		now := netip.AddrPortFrom(entry.TupleReply.IP.SourceAddress, entry.TupleReply.Proto.SourcePort)
		if entry.TupleOrig.Proto.Protocol != unix.IPPROTO_UDP || !stale(original(entry), now) {
			continue
		}
		switch err := c.conn.Delete(entry); {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			return deleted, fmt.Errorf("delete the conntrack entry of %v: %w", original(entry), err)
		default:
			deleted++
		}
	}
	return deleted, nil
}
