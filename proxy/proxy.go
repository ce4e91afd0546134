package proxy

import (
	"context"
	"errors"
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

	// The owner's.
	listeners map[service.Name]*listener
	claims    map[netip.AddrPort]*claim
	troubles  troubles
	alone     map[service.Name]bool // ports of other protocols, said already

	published atomic.Pointer[[]*listener] // listeners, for Services

	// The data path's.
	ownPorts    atomic.Pointer[map[uint16]struct{}] // every listener's port
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
		listeners:   map[service.Name]*listener{},
		claims:      map[netip.AddrPort]*claim{},
		descriptors: newDescriptors(),
	}
	p.ports = newPortPool(p.cfg.Ports, p.cfg.KeepPorts)
	p.troubles.log, p.troubles.tell = p.cfg.Log, p.cfg.Trouble
	p.shortage.log = p.cfg.Log
	p.ownPorts.Store(&map[uint16]struct{}{})
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
	for _, l := range p.listeners {
		l.wanted = false
	}
	for _, c := range p.claims {
		c.wanted = false
	}
	alone := map[service.Name]bool{}
	for _, port := range snap.Ports {
		if port.Name.Protocol == service.TCP {
			p.openPort(port, &opened)
			continue
		}
		name := port.Name
		name.Family = 0 // one line for both
		if !alone[name] && !p.alone[name] {
			p.cfg.Log.Warn("only TCP is relayed yet; this Service port is left alone", "service", name.String(), "protocol", string(name.Protocol))
		}
		alone[name] = true
	}
	p.alone = alone
	for _, l := range p.listeners {
		if !l.wanted {
			p.troubles.note(l.name, "stop serving", l.leave())
		}
	}
	p.storeOwnPorts()
	p.counters.failing.Store(int64(opened.Failed))
	p.troubles.end()
	return opened
}

// openPort brings one Service port's listener up to date and adds the bindings of
// its portals.
func (p *Proxy) openPort(port *service.Port, opened *Opened) {
	l := p.listeners[port.Name]
	if l == nil && !p.roomForListener() {
		opened.Failed++
		p.troubles.note(service.Name{}, "open every listener", errNoRoomForListener)
		return
	}
	if l == nil {
		var err error
		if l, err = p.listen(port); !p.troubles.note(port.Name, "open a listener", err) {
			opened.Failed++
			return
		}
		p.listeners[port.Name] = l
	}
	l.wanted = true
	changed := l.port.Load() != port || l.left
	if !p.troubles.note(port.Name, "serve", l.update(port, p.cfg.Balancer)) {
		opened.Failed++
	} else if changed {
		p.cfg.Log.Debug("serving", "service", port.Name.String(), "endpoints", l.eligible.Load())
	}
	for _, portal := range port.Portals() {
		err := p.hold(port.Name.Family, portal)
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

// Prune closes the listeners and gives up the node ports that the Snapshot last
// opened does not have, and reports whether there were any: what could not be opened
// may now find a port. Their established connections go on.
func (p *Proxy) Prune() (freed bool) {
	maps.DeleteFunc(p.listeners, func(_ service.Name, l *listener) bool {
		if !l.wanted {
			l.close()
			l.balancer.Close()
			freed = true
		}
		return !l.wanted
	})
	maps.DeleteFunc(p.claims, func(_ netip.AddrPort, c *claim) bool {
		if !c.wanted {
			c.release()
			freed = true
		}
		return !c.wanted
	})
	p.storeOwnPorts()
	return freed
}

// Shutdown closes every listener, waits for the connections until ctx ends, and
// resets those still there then. It returns when all are gone.
func (p *Proxy) Shutdown(ctx context.Context) {
	for _, l := range p.listeners {
		l.close()
	}
	for _, c := range p.claims {
		c.release()
	}
	p.accepting.Wait()
	stop := context.AfterFunc(ctx, p.cancel)
	p.conns.Wait()
	stop()
	p.cancel()
	for _, l := range p.listeners { // not before: a connection may still be in search of its backend
		l.balancer.Close()
	}
	clear(p.listeners)
	clear(p.claims)
}

// storeOwnPorts tells the data path which ports are our listeners', and how many
// descriptors the control path holds.
func (p *Proxy) storeOwnPorts() {
	ports := make(map[uint16]struct{}, len(p.listeners))
	for _, l := range p.listeners {
		ports[l.addr.Port()] = struct{}{}
	}
	p.ownPorts.Store(&ports)
	p.descriptors.standing.Store(int64(len(p.listeners) + len(p.claims)))
	p.publish()
}

// isOwnListener reports whether a dial to addr would reach one of our listeners.
func (p *Proxy) isOwnListener(addr netip.AddrPort) bool {
	if !p.hasListener(addr.Port()) {
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
