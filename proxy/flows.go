package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/kube-splice/kube-splice/proxy/datagram"
	"github.com/kube-splice/kube-splice/service"
)

// flows is what UDP listeners share. It is opened with the first of them.
type flows struct {
	loop     atomic.Pointer[datagram.Loop] // nil: not opened
	tracking *datagram.Conntrack           // the Loop's; nil with Config.Direct

	// The owner's; see forgetStale.
	moved  bool
	closed map[uint16]bool
}

// openFlows opens the UDP engine.
func (p *Proxy) openFlows() (err error) {
	if p.flows.loop.Load() != nil {
		return nil
	}
	var tracking *datagram.Conntrack
	if !p.cfg.Direct {
		if tracking, err = datagram.OpenConntrack(); err != nil {
			return fmt.Errorf("tell clients of UDP apart: %w", err)
		}
	}
	most := min(int64(p.cfg.MaxFlows), max(p.descriptors.limit/2, 1))
	loop, err := datagram.New(datagram.Config{MaxFlows: int(most), Mark: p.cfg.Mark})
	if err != nil {
		if tracking != nil {
			err = errors.Join(err, tracking.Close())
		}
		return err
	}
	p.flows.tracking, p.flows.closed = tracking, map[uint16]bool{}
	p.flows.loop.Store(loop)
	return nil
}

// close ends every flow.
func (f *flows) close() {
	if loop := f.loop.Load(); loop != nil {
		loop.Close()
	}
	if f.tracking != nil {
		_ = f.tracking.Close()
	}
}

// left notes that a listener was closed.
func (f *flows) left(l *listener) {
	if l.udp != nil {
		f.moved, f.closed[l.addr.Port()] = true, true
	}
}

// listenUDP opens l's socket.
func (p *Proxy) listenUDP(l *listener) error {
	if err := p.openFlows(); err != nil {
		return err
	}
	return p.ports.listen(l.name(), func(port uint16) (err error) {
		l.addr = netip.AddrPortFrom(p.cfg.bindAddress(l.of.name.Family), port)
		l.udp, err = p.flows.loop.Load().Listen(l.addr, func(a datagram.Arrival) (datagram.Route, error) { return p.route(l, a) })
		return err
	})
}

func (l *listener) setParkedUDP(parked bool) error {
	change := l.udp.Unpark
	if parked {
		change = l.udp.Park
	}
	if err := change(); err != nil {
		return err
	}
	l.parked = parked
	return nil
}

// retainFlows ends the flows to all endpoints but those that still serve. Those that a
// policy or topology hints take away from new clients go on (as kube-proxy).
func (s *servicePort) retainFlows(endpoints []service.Endpoint) {
	serving := make(map[netip.AddrPort]bool, len(endpoints))
	for _, e := range endpoints {
		serving[e.Addr] = e.Ready || e.Serving
	}
	for _, l := range s.listeners {
		if l != nil && l.udp != nil {
			_ = l.udp.Retain(func(e netip.AddrPort) bool { return serving[e] }) // a closed Loop has none
		}
	}
}

// FlowCounts returns what was counted of UDP as a whole. It may be called from any
// goroutine.
func (p *Proxy) FlowCounts() datagram.Counts {
	loop := p.flows.loop.Load()
	if loop == nil {
		return datagram.Counts{}
	}
	return loop.Counts()
}
