package proxy

import (
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
	case c.front.port.Policy.SendProxy > 0:
		return Announced
	}
	return Hidden
}

// mayPreserve reports whether the endpoint that is to be dialled can see the client's
// address.
func (c *connection) mayPreserve() bool {
	possible := c.listener.proxy.cfg.Preserve.Possible
	if !c.preserve || c.search.hide || possible == nil {
		return false
	}
	client, endpoint := c.client.Addr().Unmap(), c.pick.Endpoint
	return service.FamilyOf(client) == service.FamilyOf(endpoint.Addr()) &&
		service.CheckEndpoint(client) == nil && // a trusted peer may name any
		c.listener.of.front.Load().port.IsLocal(endpoint) &&
		possible(client, endpoint.Addr())
}

// bindToClient gives a socket the client's address. The port is any: the client's own may
// still be taken by an earlier connection of its, to another address of the Service. It is
// chosen in connect(2), where it has to be free only towards this endpoint.
func (c *connection) bindToClient(fd int) bool {
	client := c.client.Addr().Unmap()
	level, option := unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	var address unix.Sockaddr = &unix.SockaddrInet6{Addr: client.As16()}
	if client.Is4() {
		level, option = unix.SOL_IP, unix.IP_TRANSPARENT
		address = &unix.SockaddrInet4{Addr: client.As4()}
	}
	err := unix.SetsockoptInt(fd, level, option, 1)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	}
	if err == nil {
		err = unix.Bind(fd, address)
	}
	if err != nil {
		c.listener.proxy.cfg.Log.Debug("the client's address cannot be used", "service", c.listener.name().String(), "client", client.String(), "error", err)
	}
	return err == nil
}
