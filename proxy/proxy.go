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

	"github.com/kube-splice/kube-splice/service"
)

// Proxy holds the listeners of all Service ports and serves their connections.
// Open, Prune and Shutdown belong to one goroutine, its owner's; Counts and Services
// may be called from any.
type Proxy struct {
	cfg    Config
	ctx    context.Context // ends when connections are to be reset
	cancel context.CancelFunc

	ports portPool
	flows flows

	// The owner's.
	services map[service.Name]*servicePort
	open     int // listeners
	claims   map[claimed]*claim
	troubles troubles
	alone    map[service.Name]bool // ports of other protocols, said already

	published atomic.Pointer[[]*servicePort] // services, for Services

	// The data path's.
	ownPorts    atomic.Pointer[map[ownPort]struct{}]
	stopping    atomic.Bool // Shutdown has begun
	counters    counters
	shortage    shortage
	descriptors *descriptors
	accepting   sync.WaitGroup
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
	p.ports = newPortPool(p.cfg.Ports, p.cfg.KeepPorts)
	p.troubles.log, p.troubles.tell = p.cfg.Log, p.cfg.Trouble
	p.shortage.log = p.cfg.Log
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
// that what snap no longer has is only parked; Prune closes it.
func (p *Proxy) Open(snap *service.Snapshot) Opened {
	var opened Opened
	p.troubles.begin()
	p.ports.plan(snap.Ports)
	for _, s := range p.services {
		s.wanted = false
	}
	for _, c := range p.claims {
		c.wanted = false
	}
	alone := map[service.Name]bool{}
	for _, port := range snap.Ports {
		if port.Name.Protocol == service.TCP || port.Name.Protocol == service.UDP {
			p.openPort(port, snap.NodeIPs, &opened)
			continue
		}
		name := port.Name
		name.Family = 0 // one line for both
		if !alone[name] && !p.alone[name] {
			p.cfg.Log.Warn("only TCP and UDP are relayed; this Service port is left alone", "service", name.String(), "protocol", string(name.Protocol))
		}
		alone[name] = true
	}
	p.alone = alone
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
	changed := s.update(port, nodeIPs, p.cfg.Balancer)
	front := s.front.Load()
	for scope := range service.Scope(service.Scopes) {
		p.openListener(s, scope, front.uses(scope), opened)
	}
	if !p.troubles.note(port.Name, "serve", s.park()) {
		opened.Failed++
	} else if changed {
		p.cfg.Log.Debug("serving", "service", port.Name.String(), "endpoints", s.counts().Endpoints)
	}
	for _, portal := range front.portals {
		l := s.listeners[portal.Scope]
		if l == nil {
			continue // said already
		}
		err := p.hold(port.Name, portal)
		if errors.Is(err, errNoRoomForListener) {
			opened.Failed++
			p.troubles.note(service.Name{}, "open every listener", err) // one line for all
			continue
		}
		if !p.troubles.note(port.Name, "open "+portalText(portal), err) {
			opened.Failed++
			continue
		}
		opened.Bindings = append(opened.Bindings, service.Binding{Name: port.Name, Portal: portal, Listener: l.addr})
	}
}

// openListener opens the listener of a scope if it is wanted and not there yet.
func (p *Proxy) openListener(s *servicePort, scope service.Scope, wanted bool, opened *Opened) {
	if l := s.listeners[scope]; l != nil {
		l.wanted = wanted
		return
	}
	if !wanted {
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
	for l := range p.listeners() {
		if l.udp == nil {
			l.close()
		}
	}
	for _, c := range p.claims {
		c.release()
	}
	p.accepting.Wait()
	stop := context.AfterFunc(ctx, p.cancel)
	p.conns.Wait()
	stop()
	p.flows.close()
	p.cancel()
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
			for _, l := range s.listeners {
				if l != nil && !yield(l) {
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
	local, err := net.InterfaceAddrs()
	if err != nil {
		return true // cannot tell; a refused dial is better than a loop
	}
	for _, a := range local {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr() == addr.Addr() {
			return true
		}
	}
	return false
}
