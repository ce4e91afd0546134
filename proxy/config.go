package proxy

import (
	"cmp"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/kube-splice/kube-splice/proxy/relay"
	"github.com/kube-splice/kube-splice/service"
)

// Config says how a Proxy works. Its zero value is usable.
type Config struct {
	// BindAddress is the address listeners of its family bind to. The zero value
	// and an unspecified address mean every address, for both families.
	BindAddress netip.Addr
	// Ports is where listener ports are taken from; the zero value means the
	// kernel's range of ephemeral ports.
	Ports PortRange
	// KeepPorts names the port each listener had in an earlier life; it is taken again
	// where it is free, if the first Snapshot calls for the listener.
	KeepPorts map[service.ListenerName]uint16
	// Direct serves clients that connect to the listeners themselves. Otherwise
	// only connections that a rule led here from one of the Service port's portals
	// are served, source ranges are judged, and node ports are held against other
	// programs.
	Direct bool
	// Mark is set on the sockets of backend connections (SO_MARK, socket(7));
	// 0 sets none. It needs CAP_NET_ADMIN.
	Mark int
	// Preserve is how endpoints are dialled from the client's own address; its zero value
	// means that they never are.
	Preserve Preserve
	// Balancer is the balancing policy of Services that name none; empty means
	// balancer.Default.
	Balancer string
	// DialTimeout is the time budget for reaching a backend, all tries together;
	// 0 means 5 s.
	DialTimeout time.Duration
	// KeepAlive is set on both legs of a connection; the zero value means Go's
	// defaults (first probe after 15 s, then every 15 s, 9 in all).
	KeepAlive net.KeepAliveConfig
	// HalfClosed is the limit of half-closed connections; 0 means an hour,
	// negative means none.
	HalfClosed time.Duration
	// UDPTimeout ends a flow when no datagram passed in either direction for this long,
	// where its Service has no idle timeout of its own; 0 means 30 s.
	UDPTimeout time.Duration
	// MaxFlows is how many flows there are at most; 0 means 65,536. The least recently
	// used one makes room. Each takes a descriptor and an ephemeral port (ip(7)), so there
	// are never more than half of the descriptors that listeners leave; the other half is
	// for connections.
	MaxFlows int
	// Trusted are the peers that have to begin connections with a PROXY header where a
	// Service port wants one (service.Policy.AcceptProxy), and whose word is taken for who
	// the client is. Empty: nobody is.
	Trusted []netip.Prefix
	// HeaderTimeout is how long they may take to send it; 0 means 3 s.
	HeaderTimeout time.Duration
	// Engine accepts, dials and relays TCP; nil means a relay.Copier. Shutdown closes it.
	Engine relay.Engine
	// Record is told of every connection once it has ended. It is called on the
	// data path and must not block. May be nil.
	Record func(Record)
	// Trouble is told what cannot be done for a Service port, such as "open nodePort
	// 30080", when it first fails and at each other cause. It is called by the Proxy's
	// owner within Open and must not block. May be nil.
	Trouble func(name service.Name, what string, err error)
	// Log takes what an operator has to know; nil discards it.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.DialTimeout == 0 {
		c.DialTimeout = 5 * time.Second
	}
	switch {
	case c.HalfClosed == 0:
		c.HalfClosed = time.Hour
	case c.HalfClosed < 0:
		c.HalfClosed = 0
	}
	if c.HeaderTimeout == 0 {
		c.HeaderTimeout = 3 * time.Second
	}
	if c.UDPTimeout == 0 {
		c.UDPTimeout = 30 * time.Second
	}
	if c.MaxFlows <= 0 {
		c.MaxFlows = 1 << 16
	}
	if c.KeepAlive == (net.KeepAliveConfig{}) {
		c.KeepAlive.Enable = true
	}
	if c.Engine == nil {
		c.Engine = relay.NewCopier()
	}
	if c.Record == nil {
		c.Record = func(Record) {}
	}
	if c.Trouble == nil {
		c.Trouble = func(service.Name, string, error) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// bindAddress returns the address listeners of the family bind to.
func (c Config) bindAddress(f service.Family) netip.Addr {
	if c.BindAddress.IsValid() && !c.BindAddress.IsUnspecified() && service.FamilyOf(c.BindAddress) == f {
		return c.BindAddress.Unmap()
	}
	return f.Unspecified()
}

// What a zero of net.KeepAliveConfig stands for.
const (
	goKeepAlive  = 15 // seconds
	goKeepProbes = 9
)

// unanswered is how long keepalive takes to find a dead peer, which is then also how
// long one may leave data unacknowledged. Without keepalive there is no limit.
func (c Config) unanswered() time.Duration {
	k := c.KeepAlive
	if !k.Enable {
		return 0
	}
	return cmp.Or(k.Idle, goKeepAlive*time.Second) + cmp.Or(k.Interval, goKeepAlive*time.Second)*time.Duration(cmp.Or(k.Count, goKeepProbes))
}
