package proxy

import (
	"maps"
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
	running  chan error      // has what came of the run that goes on; nil: none does
	looked   map[uint16]bool // ports, as that run has them
	troubles troubles
}

// follow takes note of the bindings there are now.
func (s *stale) follow(bindings []service.Binding) {
	if s.has(bindings) {
		return
	}
	s.bindings, s.due = nil, true
	for _, b := range bindings {
		if b.Name.Protocol == service.UDP {
			s.bindings = append(s.bindings, b)
		}
	}
	s.addPorts()
}

// has reports whether those of UDP among bindings are those known. It is asked at each
// change of anything, so it makes no list of them.
func (s *stale) has(bindings []service.Binding) bool {
	known := s.bindings
	for _, b := range bindings {
		if b.Name.Protocol != service.UDP {
			continue
		}
		if len(known) == 0 || known[0] != b {
			return false
		}
		known = known[1:]
	}
	return len(known) == 0
}

func (s *stale) addPorts() {
	for _, b := range s.bindings {
		s.ports[b.Listener.Port()] = true
	}
}

// forgetStale sees to it that the conntrack entries that do not lead where a binding
// does are deleted, once after each change of bindings, when the rules are in force.
// Reading a table of hundreds of thousands takes a while, so that is a goroutine's work,
// one at a time. What fails, or comes meanwhile, is done at the next call.
func (p *Proxy) forgetStale() {
	s := &p.flows.stale
	select {
	case err := <-s.running:
		s.running = nil
		s.forgot(err)
	default:
	}
	if p.cfg.Direct || !s.due || s.running != nil {
		return
	}
	s.due, s.looked = false, s.ports
	s.ports = map[uint16]bool{}
	s.addPorts()
	running, stale := make(chan error, 1), s.entries()
	s.running = running
	go forgetEntries(stale, running)
}

// forgetEntries is the goroutine that deletes entries. It sends what came of it.
func forgetEntries(stale func(original, now netip.AddrPort) bool, done chan<- error) {
	tracking, err := datagram.OpenConntrack()
	if err == nil {
		_, err = tracking.Forget(stale)
		_ = tracking.Close()
	}
	done <- err
}

// forgot takes what came of deleting entries.
func (s *stale) forgot(err error) {
	s.troubles.begin()
	if !s.troubles.note(service.Name{}, "delete stale conntrack entries", err) {
		s.due = true
		maps.Copy(s.ports, s.looked)
	}
	s.troubles.end()
}

// wait waits for the goroutine that deletes entries, if there is one.
func (s *stale) wait() {
	if s.running != nil {
		<-s.running
		s.running = nil
	}
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
	looked := s.looked
	local, _ := ownAddresses() // without them fewer entries are known to be stale
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
		return original != now && local[now.Addr()] && looked[now.Port()]
	}
}
