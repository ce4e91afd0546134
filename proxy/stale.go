package proxy

import (
	"net"
	"net/netip"
	"slices"

	"github.com/kube-splice/kube-splice/proxy/datagram"
	"github.com/kube-splice/kube-splice/service"
)

// stale looks after what conntrack remembers of UDP. An entry pins a client to what the
// rules said at its first datagram, for as long as it goes on: past a listener that
// came later, to one that is gone, or to the pod that the kube-proxy before us chose.
type stale struct {
	bindings []service.Binding // those of UDP, as of the last Open
	ports    map[uint16]bool   // of listeners that entries may lead to
	due      bool
	troubles troubles
}

// follow takes note of the bindings there are now.
func (s *stale) follow(bindings []service.Binding) {
	udp := slices.DeleteFunc(slices.Clone(bindings), func(b service.Binding) bool { return b.Name.Protocol != service.UDP })
	if slices.Equal(udp, s.bindings) {
		return
	}
	s.bindings, s.due = udp, true
	s.addPorts()
}

func (s *stale) addPorts() {
	for _, b := range s.bindings {
		s.ports[b.Listener.Port()] = true
	}
}

// forgetStale deletes the conntrack entries that do not lead where a binding does, once
// after each change of bindings, when the rules are in force. What fails is tried again
// at the next call.
func (p *Proxy) forgetStale() {
	s := &p.flows.stale
	if p.cfg.Direct || !s.due {
		return
	}
	tracking, err := datagram.OpenConntrack()
	if err == nil {
		_, err = tracking.Forget(s.entries())
		_ = tracking.Close()
	}
	s.troubles.begin()
	if s.troubles.note(service.Name{}, "delete stale conntrack entries", err) {
		s.due = false
		clear(s.ports)
		s.addPorts()
	}
	s.troubles.end()
}

// entries tells which entries are stale: those of our portals that lead elsewhere, and
// those that lead from anywhere else to our listeners. One that leads to a listener of
// its Service port is none, though a policy may have changed since: that is for new
// clients (as kube-proxy). Nor is one that no rule has changed: whoever asks a listener
// itself is refused there.
func (s *stale) entries() func(original, now netip.AddrPort) bool {
	all := map[service.Name][]uint16{}
	for _, b := range s.bindings {
		all[b.Name] = append(all[b.Name], b.Listener.Port())
	}
	listeners := map[netip.AddrPort][]uint16{} // by portal; node ports without an address
	for _, b := range s.bindings {
		portal := netip.AddrPortFrom(b.Portal.Addr, b.Portal.Number)
		listeners[portal] = append(listeners[portal], all[b.Name]...)
	}
	local := localAddresses()
	return func(original, now netip.AddrPort) bool {
		ports, ours := listeners[original]
		if addr := original.Addr(); !ours && (local[addr] || addr.IsLoopback()) {
			ports, ours = listeners[netip.AddrPortFrom(netip.Addr{}, original.Port())]
		}
		switch {
		case slices.Contains(ports, now.Port()):
			return false
		case ours:
			return true
		}
		return original != now && local[now.Addr()] && s.ports[now.Port()]
	}
}

// localAddresses returns the addresses of this node; none if they cannot be read, and
// then fewer entries are known to be stale.
func localAddresses() map[netip.Addr]bool {
	local := map[netip.Addr]bool{}
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			local[prefix.Addr()] = true
		}
	}
	return local
}
