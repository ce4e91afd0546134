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
	refusals refusals                      // the Loop's

	// The owner's.
	stale  stale
	closed bool
}

// openFlows opens the UDP engine. Where it cannot be told which address a client asked
// for, UDP is not served: anybody who found a listener's port could get round the
// rules that guard a Service.
func (p *Proxy) openFlows() (err error) {
	if p.flows.loop.Load() != nil {
		return nil
	}
	if !p.cfg.Direct {
		if p.flows.tracking, err = openTracking(); err != nil {
			return fmt.Errorf("find out where clients of UDP send to: %w", err)
		}
	}
	most := p.descriptors.shareFor(p.cfg.MaxFlows, p.open+len(p.claims))
	loop, err := datagram.New(datagram.Config{MaxFlows: int(most)})
	if err != nil {
		return errors.Join(err, p.flows.closeTracking())
	}
	p.descriptors.flows.Store(most)
	if most < int64(p.cfg.MaxFlows) {
		p.cfg.Log.Info("flows of UDP are bounded by the limit on open files (ulimit -n)", "asked", p.cfg.MaxFlows, "most", most)
	}
	p.flows.loop.Store(loop)
	return nil
}

// openTracking opens conntrack and asks it something: a kernel that lacks ctnetlink, or
// that wants more privileges, says so only then.
func openTracking() (*datagram.Conntrack, error) {
	tracking, err := datagram.OpenConntrack()
	if err != nil {
		return nil, err
	}
	const discard = 9 // RFC 863
	nobody := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), discard)
	if _, err := tracking.Original(nobody, nobody); err != nil && !errors.Is(err, datagram.ErrUntracked) {
		return nil, fmt.Errorf("ask conntrack (needs nf_conntrack_netlink and CAP_NET_ADMIN): %w", errors.Join(err, tracking.Close()))
	}
	return tracking, nil
}

func (f *flows) closeTracking() error {
	if f.tracking == nil {
		return nil
	}
	return f.tracking.Close()
}

// close ends every flow and closes the listeners. The counts stay.
func (f *flows) close() {
	f.stale.wait()
	if loop := f.loop.Load(); loop != nil && !f.closed {
		f.closed = true
		loop.Close()
		_ = f.closeTracking()
	}
}

// listenUDP opens l's socket.
func (p *Proxy) listenUDP(l *listener) error {
	if err := p.openFlows(); err != nil {
		return err
	}
	router := func(a datagram.Arrival) (datagram.Route, error) { return p.route(l, a) }
	return p.ports.listen(l.name(), func(port uint16) (err error) {
		l.addr = netip.AddrPortFrom(p.cfg.bindAddress(l.of.name.Family), port)
		l.udp, err = p.flows.loop.Load().Listen(l.addr, router)
		return notOurAddress(l.addr.Addr(), err)
	})
}

// setParkedUDP is setParked for UDP.
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

// retainFlows ends the flows to all endpoints but those that still serve, terminating
// or not. Those that a policy or topology hints take away from new clients go on (as
// kube-proxy).
func (s *servicePort) retainFlows(endpoints []service.Endpoint) {
	if s.name.Protocol != service.UDP {
		return
	}
	serving := make(map[netip.AddrPort]bool, len(endpoints))
	for _, e := range endpoints {
		serving[e.Addr] = e.Ready || e.Serving
	}
	for l := range s.open() {
		_ = l.udp.Retain(func(e netip.AddrPort) bool { return serving[e] }) // a closed Loop has none
	}
}
