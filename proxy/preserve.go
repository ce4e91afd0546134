package proxy

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/service"
)

// Preserve is how endpoints on this node are dialled from the client's own address
// (IP_TRANSPARENT, ip(7)), which needs CAP_NET_ADMIN, and rules that bring the answers to
// us and not to the client.
type Preserve struct {
	// Mark is set besides Config.Mark on the sockets that have a client's address, and
	// tells those rules which connections they are for.
	Mark int
	// Possible reports whether the rules are in force, and the answers of an endpoint to a
	// client come by this node at all. It is called on the data path, from several
	// goroutines at once. Nil: never.
	Possible func(client, endpoint netip.Addr) bool
}

// ClientIP is how a backend knows the client's address, in the words of the connection log.
type ClientIP string

// How a backend knows the client.
const (
	Preserved ClientIP = "preserved"      // as the source of the connection
	Announced ClientIP = "proxy-protocol" // from a PROXY header
	Hidden    ClientIP = "hidden"         // it does not: the node connects
)

// seen returns how the backend knows the client.
func (c *connection) seen() ClientIP {
	switch {
	case c.preserving:
		return Preserved
	case c.front.port.Announces():
		return Announced
	}
	return Hidden
}

// Prepare implements relay.Session: it marks a socket before it connects, so that the
// rules of the host's own traffic let it pass even to an endpoint whose address is a
// Service's. It may give it the client's address.
func (c *connection) Prepare(fd int) error {
	p := c.listener.proxy
	c.preserving = c.preserve && !c.search.hide && p.bindToClient(fd, c.listener, c.client.Addr(), c.pick.Endpoint)
	if err := p.mark(fd, c.preserving); err != nil {
		return err
	}
	return setKeepAlive(fd, p.cfg.KeepAlive)
}

// Prepare implements datagram.Token, as that of a connection.
func (f *flow) Prepare(fd int) error {
	f.preserving = f.preserve && f.proxy.bindToClient(fd, f.listener, f.client.Addr(), f.pick.Endpoint)
	return f.proxy.mark(fd, f.preserving)
}

// mark marks a socket that is to connect to a backend, from the client's address or not.
func (p *Proxy) mark(fd int, preserving bool) error {
	mark := p.cfg.Mark
	if preserving {
		mark |= p.cfg.Preserve.Mark
	}
	if mark == 0 {
		return nil
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark); err != nil {
		return fmt.Errorf("set the socket's mark (needs CAP_NET_ADMIN): %w", err)
	}
	return nil
}

// bindToClient gives a socket the client's address, if the endpoint can see that, and
// reports whether it has it.
func (p *Proxy) bindToClient(fd int, l *listener, client netip.Addr, endpoint netip.AddrPort) bool {
	client = client.Unmap()
	possible := p.cfg.Preserve.Possible != nil &&
		service.FamilyOf(client) == service.FamilyOf(endpoint.Addr()) &&
		service.CheckEndpoint(client) == nil && // a trusted peer may name any
		l.of.front.Load().port.IsLocal(endpoint) &&
		p.cfg.Preserve.Possible(client, endpoint.Addr())
	if !possible {
		return false
	}
	err := bindTransparently(fd, client, l.of.name.Protocol)
	if err != nil {
		p.cfg.Log.Debug("the client's address cannot be used", "service", l.name().String(), "client", client.String(), "error", err)
	}
	return err == nil
}

// bindTransparently binds a socket to an address of somebody else. The port is any: the
// client's own may still be taken by an earlier connection of its, to another address of
// the Service. Of TCP it is chosen in connect(2), as it has to be free only towards the
// endpoint.
func bindTransparently(fd int, addr netip.Addr, protocol service.Protocol) error {
	level, option := unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	var address unix.Sockaddr = &unix.SockaddrInet6{Addr: addr.As16()}
	if addr.Is4() {
		level, option = unix.SOL_IP, unix.IP_TRANSPARENT
		address = &unix.SockaddrInet4{Addr: addr.As4()}
	}
	err := unix.SetsockoptInt(fd, level, option, 1)
	if err == nil && protocol == service.TCP {
		err = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	}
	if err == nil {
		err = unix.Bind(fd, address)
	}
	return err
}
