package proxy

import (
	"context"
	"errors"
	"iter"
	"maps"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/gaissmai/bart"

	"github.com/kube-splice/kube-splice/service"
)

// Proxy holds the listeners of all Service ports and serves their connections.
// Open, Prune and Shutdown belong to one goroutine, its owner's; Counts and Services
// may be called from any.
type Proxy struct {
	cfg    Config
	ctx    context.Context // ends when connections are to be reset
	cancel context.CancelFunc

	trusted *bart.Lite // peers that send PROXY headers; nil: nobody

	ports portPool
	flows flows

	// The owner's.
	services map[service.Name]*servicePort
	open     int // listeners
	claims   map[claimed]*claim
	own      func() (map[netip.Addr]bool, error) // ownAddresses, asked once an Open at most
	troubles troubles

	published atomic.Pointer[[]*servicePort] // services, for Services

	// The data path's.
	ownPorts    atomic.Pointer[map[ownPort]struct{}]
	stopping    atomic.Bool // Shutdown has begun
	counters    counters
	shortage    shortage
	descriptors *descriptors
	conns       sync.WaitGroup
}

// New returns a Proxy without listeners. Shutdown ends it.
func New(cfg Config) *Proxy {
	p := &Proxy{
		cfg:         cfg.withDefaults(),
		services:    map[service.Name]*servicePort{},
		claims:      map[claimed]*claim{},
		descriptors: newDescriptors(),
	}
	p.trusted = trusted(p.cfg.Trusted)
	p.ports = newPortPool(p.cfg.Ports, p.cfg.KeepPorts)
	p.troubles.log, p.troubles.tell = p.cfg.Log, p.cfg.Trouble
	p.shortage.log = p.cfg.Log
	p.flows.refusals.log = p.cfg.Log
	p.flows.stale = stale{ports: map[uint16]bool{}, troubles: troubles{log: p.cfg.Log, tell: p.cfg.Trouble}}
	p.ownPorts.Store(&map[ownPort]struct{}{})
	p.publish()
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Opened is what Open could do.
type Opened struct {
	// Bindings of every portal that is served now, in the order of the Snapshot.
	Bindings []service.Binding
	// Failed counts what could not be opened, listeners and portals. Each was
	// logged when it first failed. Open the same Snapshot again to retry.
	Failed int
}

// Open brings listeners, balancers and held node ports to what snap wants, except
// that what snap no longer calls for stays until Prune closes it: the listener of a
// Service port that is gone is parked, one of a scope that is gone serves as the other.
func (p *Proxy) Open(snap *service.Snapshot) Opened {
	opened := Opened{Bindings: make([]service.Binding, 0, len(snap.Ports))}
	p.own = sync.OnceValues(ownAddresses)
	p.troubles.begin()
	p.ports.plan(snap.Ports)
	for _, s := range p.services {
		s.wanted = false
	}
	for _, c := range p.claims {
		c.wanted = false
	}
	for _, port := range snap.Ports {
		p.openPort(port, snap.NodeIPs, &opened)
	}
	for _, s := range p.services {
		if !s.wanted {
			s.leave()
			p.troubles.note(s.name, "stop serving", s.park())
		}
	}
	p.storeOwnPorts()
	p.flows.stale.follow(opened.Bindings)
	p.counters.failing.Store(int64(opened.Failed))
	p.troubles.end()
	return opened
}

// openPort brings one Service port's listeners up to date and adds the bindings of
// its portals.
func (p *Proxy) openPort(port *service.Port, nodeIPs []netip.Addr, opened *Opened) {
	s := p.services[port.Name]
	if s == nil {
		s = p.newServicePort(port.Name)
		p.services[port.Name] = s
	}
	s.wanted = true
	p.noteUntrusted(port)
	changed := s.update(port, nodeIPs, p.cfg.Balancer)
	front := s.front.Load()
	for scope := range service.Scope(service.Scopes) {
		p.openListener(s, scope, front.uses(scope), opened)
	}
	if !p.troubles.note(port.Name, "serve", s.park()) {
		opened.Failed++
	} else if changed {
		p.cfg.Log.Debug("serving", "service", port.Name.String(), "endpoints", s.endpoints())
	}
	for _, portal := range front.portals {
		l := s.listeners[portal.Scope]
		if l == nil {
			continue // said already
		}
		if err := p.hold(port.Name, portal); err != nil {
			opened.Failed++
			p.noteUnheld(port.Name, portal, err)
			continue
		}
		opened.Bindings = append(opened.Bindings, service.Binding{Name: port.Name, Portal: portal, Listener: l.addr})
	}
}

// noteUnheld says that a portal cannot be held: one line for all where descriptors are
// too few, and nothing where a listener of ours is about to make room.
func (p *Proxy) noteUnheld(name service.Name, portal service.Portal, err error) {
	switch {
	case errors.Is(err, errInTheWay):
	case errors.Is(err, errNoRoomForListener):
		p.troubles.note(service.Name{}, "open every listener", err)
	default:
		p.troubles.note(name, "open "+portalText(portal), err)
	}
}

// openListener opens the listener of a scope if it is wanted and not there yet, or in
// the way where it is.
func (p *Proxy) openListener(s *servicePort, scope service.Scope, wanted bool, opened *Opened) {
	before := s.listeners[scope]
	if before != nil {
		before.wanted = wanted
	}
	if !wanted || before != nil && !before.inTheWay {
		return
	}
	if !p.roomForListener() {
		opened.Failed++
		p.troubles.note(service.Name{}, "open every listener", errNoRoomForListener)
		return
	}
	what := "open a listener"
	if scope == service.Local {
		what += " for local endpoints"
	}
	l, err := p.listen(s, scope)
	if !p.troubles.note(s.name, what, err) {
		opened.Failed++
		return
	}
	l.wanted = true
	s.listeners[scope] = l
	p.open++
	if before != nil {
		s.leaving = append(s.leaving, before)
	}
}

// Prune closes the listeners and gives up the node ports that the Snapshot last
// opened does not call for, and reports whether there were any: what could not be opened
// may now find a port. Their established connections go on.
func (p *Proxy) Prune() (freed bool) {
	maps.DeleteFunc(p.services, func(_ service.Name, s *servicePort) bool {
		for scope, l := range s.listeners {
			if l != nil && !(s.wanted && l.wanted) {
				l.close()
				s.listeners[scope] = nil
				p.open--
				freed = true
			}
		}
		for _, l := range s.leaving {
			l.close()
			p.open--
			freed = true
		}
		s.leaving = nil
		if !s.wanted {
			s.balancer.Close()
		}
		return !s.wanted
	})
	maps.DeleteFunc(p.claims, func(_ claimed, c *claim) bool {
		if !c.wanted {
			c.release()
			freed = true
		}
		return !c.wanted
	})
	p.storeOwnPorts()
	p.forgetStale()
	return freed
}

// Shutdown closes every TCP listener, waits for the connections until ctx ends, and
// resets those still there then. It returns when all are gone.
//
// UDP, with new flows, is served meanwhile, and ends when the connections have. Nothing
// waits for flows: they never end by themselves, and their clients ask again.
func (p *Proxy) Shutdown(ctx context.Context) {
	p.stopping.Store(true)
	var closing sync.WaitGroup // each may wait for a busy loop's turn
	for l := range p.listeners() {
		if l.udp == nil {
			closing.Go(l.close)
		}
	}
	closing.Wait()
	for _, c := range p.claims {
		c.release()
	}
	stop := context.AfterFunc(ctx, func() {
		p.cancel()
		p.cfg.Engine.Abort()
	})
	p.conns.Wait()
	stop()
	p.flows.close()
	p.cancel()
	p.cfg.Engine.Close()
	for _, s := range p.services { // not before: a connection may still be in search of its backend
		s.balancer.Close()
	}
	clear(p.services)
	clear(p.claims)
}

// listeners ranges over the listeners of all Service ports.
func (p *Proxy) listeners() iter.Seq[*listener] {
	return func(yield func(*listener) bool) {
		for _, s := range p.services {
			for l := range s.open() {
				if !yield(l) {
					return
				}
			}
		}
	}
}

// ownPort is the port of a listener of ours.
type ownPort struct {
	protocol service.Protocol
	number   uint16
}

// storeOwnPorts tells the data path which ports are our listeners', and how many
// descriptors the control path holds.
func (p *Proxy) storeOwnPorts() {
	ports := make(map[ownPort]struct{}, p.open)
	for l := range p.listeners() {
		ports[ownPort{l.of.name.Protocol, l.addr.Port()}] = struct{}{}
	}
	p.ownPorts.Store(&ports)
	p.descriptors.standing.Store(int64(p.open + len(p.claims)))
	p.publish()
}

// isOwnListener reports whether addr would reach one of our listeners.
func (p *Proxy) isOwnListener(protocol service.Protocol, addr netip.AddrPort) bool {
	if !p.hasListener(protocol, addr.Port()) {
		return false
	}
	own, err := ownAddresses()
	return err != nil || own[addr.Addr()] // a refused dial is better than a loop
}

// ownAddresses returns the addresses of this node.
func ownAddresses() (map[netip.Addr]bool, error) {
	addrs, err := net.InterfaceAddrs()
	own := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			own[prefix.Addr()] = true
		}
	}
	return own, err
}
