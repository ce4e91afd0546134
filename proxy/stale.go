package proxy

import (
	"net"
	"net/netip"

	"github.com/kube-splice/kube-splice/proxy/datagram"
	"github.com/kube-splice/kube-splice/service"
)

// forgetStale deletes the conntrack entries that would go on leading clients of UDP
// portals past their listeners, because a listener, or the rule to it, came after
// the client's first datagram, or is gone. It does nothing while no listener was
// opened or closed, and is called when the rules are in force.
func (p *Proxy) forgetStale() {
	if p.cfg.Direct || !p.flows.moved {
		return
	}
	tracking, err := datagram.OpenConntrack()
	if err == nil {
		_, err = tracking.Forget(p.staleEntries())
		_ = tracking.Close()
	}
	if !p.troubles.note(service.Name{}, "delete stale conntrack entries", err) {
		return
	}
	p.flows.moved = false
	clear(p.flows.closed)
}

// staleEntries tells which entries those are.
func (p *Proxy) staleEntries() func(original, now netip.AddrPort) bool {
	wanted := map[netip.AddrPort][]uint16{} // listeners of a portal; node ports without an address
	for _, s := range p.services {
		if s.name.Protocol != service.UDP {
			continue
		}
		for _, portal := range s.front.Load().portals {
			at := netip.AddrPortFrom(portal.Addr, portal.Number)
			if portal.Kind == service.NodePort {
				at = netip.AddrPortFrom(netip.Addr{}, portal.Number)
			}
			if l := s.listeners[portal.Scope]; l != nil {
				wanted[at] = append(wanted[at], l.addr.Port())
			}
		}
	}
	local := localAddresses()
	return func(original, now netip.AddrPort) bool {
		ports, ours := wanted[original]
		if !ours && local[now.Addr()] {
			ports, ours = wanted[netip.AddrPortFrom(netip.Addr{}, original.Port())]
		}
		for _, port := range ports {
			if port == now.Port() {
				return false
			}
		}
		return ours || original != now && local[now.Addr()] && p.flows.closed[now.Port()]
	}
}

func localAddresses() map[netip.Addr]bool {
	local := map[netip.Addr]bool{}
	addrs, _ := net.InterfaceAddrs() // without them, fewer entries are known to be stale
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			local[prefix.Addr()] = true
		}
	}
	return local
}
