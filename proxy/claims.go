package proxy

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/service"
)

// claim is a port of this node held against other programs: a rule leads its
// connections to a listener, so a program that listened on it would never be
// reached, and one that already does must not be cut off. The socket is bound and
// never listens; who is not led away by a rule is refused by the kernel.
//
// The historical kube-proxy held node ports, and portals on addresses of the node
// itself, with listening sockets, in which stray connections hung.
type claim struct {
	fd     int
	wanted bool
}

// claimed is what a claim holds.
type claimed struct {
	protocol service.Protocol
	at       netip.AddrPort
}

// hold claims what a portal takes away from other programs of this node: a node
// port, or a port on an external or load-balancer address that is the node's own.
// It fails when another program has it.
func (p *Proxy) hold(name service.Name, portal service.Portal) error {
	if p.cfg.Direct || portal.Kind == service.ClusterIP {
		return nil
	}
	addr := portal.Addr
	if portal.Kind == service.NodePort {
		addr = name.Family.Unspecified()
	}
	at := claimed{name.Protocol, netip.AddrPortFrom(addr, portal.Number)}
	if c := p.claims[at]; c != nil {
		c.wanted = true
		return nil
	}
	if !p.roomForListener() {
		return errNoRoomForListener
	}
	fd, err := p.bind(at)
	switch {
	case err == nil:
		p.claims[at] = &claim{fd: fd, wanted: true}
		return nil
	case errors.Is(err, unix.EADDRNOTAVAIL) && portal.Kind != service.NodePort:
		return nil // not an address of this node
	case errors.Is(err, unix.EADDRINUSE) && p.hasListener(name.Protocol, portal.Number):
		return fmt.Errorf("a listener of this proxy has port %d: keep --proxy-port-range apart from the node ports: %w", portal.Number, err)
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("another program of this node uses port %d: stop it or choose another port: %w", portal.Number, err)
	}
	return err
}

func (c *claim) release() { _ = unix.Close(c.fd) }

// bind claims at, although we hold the same number on another address that overlaps
// with it: a node port is held on every address.
func (p *Proxy) bind(at claimed) (int, error) {
	fd, err := bind(at, false)
	if !errors.Is(err, unix.EADDRINUSE) {
		return fd, err
	}
	overlaps := false
	for own, c := range p.claims {
		if own.protocol == at.protocol && own.at.Port() == at.at.Port() {
			overlaps = true
			_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			defer func() { _ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0) }()
		}
	}
	if !overlaps {
		return -1, err
	}
	return bind(at, true)
}

func (p *Proxy) hasListener(protocol service.Protocol, port uint16) bool {
	_, has := (*p.ownPorts.Load())[ownPort{protocol, port}]
	return has
}

// bind binds a socket to a port that nobody else can bind to, unless share is true and
// that one shares too.
//
// For TCP, SO_REUSEADDR lets it pass over connections in TIME-WAIT, and is taken back at
// once. For UDP it would let it pass over a program that shares its port.
func bind(c claimed, share bool) (int, error) {
	domain, kind := unix.AF_INET, unix.SOCK_STREAM
	var sa unix.Sockaddr = &unix.SockaddrInet4{Port: int(c.at.Port()), Addr: as4(c.at.Addr())}
	if c.at.Addr().Is6() {
		domain = unix.AF_INET6
		sa = &unix.SockaddrInet6{Port: int(c.at.Port()), Addr: c.at.Addr().As16()}
	}
	if c.protocol == service.UDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if domain == unix.AF_INET6 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	if share || c.protocol == service.TCP {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	}
	if err == nil {
		err = unix.Bind(fd, sa)
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("bind", err)
	}
	if c.protocol == service.UDP {
		deafen(fd)
	}
	return fd, nil
}

// deafen makes the kernel refuse datagrams that no rule leads away, instead of keeping
// them for a socket that nobody reads: it hears only an interface that does not exist. A
// kernel before 5.1 cannot, and keeps some.
func deafen(fd int) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, math.MaxInt32)
}

func as4(a netip.Addr) (b [4]byte) {
	if a.Is4() {
		b = a.As4()
	}
	return b
}

func portalText(portal service.Portal) string {
	if portal.Kind == service.NodePort {
		return fmt.Sprintf("nodePort %d", portal.Number)
	}
	return fmt.Sprintf("%v %v", portal.Kind, netip.AddrPortFrom(portal.Addr, portal.Number))
}
