package datagram

import (
	"errors"
	"net/netip"
	"time"
)

// Config says how a Loop works. Its zero value is usable.
type Config struct {
	// MaxFlows is how many flows the Loop keeps at most; the least recently used one
	// makes room for a new one, unless that is refused. 0 means 65,536. A flow takes one descriptor and one
	// ephemeral port (ip(7), ip_local_port_range), so the system may set a lower limit;
	// where it does, flows make room in the same way.
	MaxFlows int
}

const defaultMaxFlows = 1 << 16

// Router says where a new flow goes. The Loop calls it, so every client waits for it:
// it must be quick, as a mutex and a few map look-ups are, and must not call methods
// of the Loop or its Listeners. When the answer takes longer, it returns [ErrLater]
// and calls Answer afterwards. Any other error refuses the client: its datagrams are
// dropped, and it is not asked for again for a second or until [Listener.Retain]. That
// holds too for a client whose Route got no socket, but only for so many clients at a
// time: when many are refused, a Router may be asked again at once.
type Router func(Arrival) (Route, error)

// ErrLater is what a Router returns that will call [Arrival.Answer]. Meanwhile the
// first datagrams of the flow are kept, and dropped after five seconds.
var ErrLater = errors.New("the answer comes later")

// Arrival is a datagram that belongs to no flow yet.
type Arrival struct {
	Client netip.AddrPort
	// Local is the address it came to, as far as a socket can tell: after a REDIRECT
	// that is the listener's, not the one the client used. See [Conntrack.Original].
	Local netip.AddrPort

	flow *flow
	loop *Loop
}

// Answer lets route, in the Loop, answer what a Router put off with [ErrLater]. It is
// not called if the flow has ended meanwhile. Answer may be called from any goroutine
// but the Loop's, and returns without waiting for route.
func (a Arrival) Answer(route func() (Route, error)) {
	_ = a.loop.post(func() { a.loop.answered(a.flow, route) }) // a closed Loop has no flows
}

// Route is where a flow goes.
type Route struct {
	Backend netip.AddrPort
	// Idle ends the flow when no datagram passed in either direction for this long; at
	// least 1 ms.
	Idle time.Duration
	// Token is told how the flow goes. The Loop keeps it until it has called Done.
	Token Token
}

// Token stands for one flow at its owner. The Loop calls its methods, so what is said
// of a Router holds for them.
type Token interface {
	// Prepare may set options of a socket of the flow before it connects to its endpoint.
	Prepare(fd int) error
	// Failed reports that the flow's endpoint cannot be reached: its machine has said
	// that the port is closed (ECONNREFUSED), or there is no way to it. The flow goes
	// on to the endpoint returned, which may be the same; the zero AddrPort ends it.
	Failed(error) netip.AddrPort
	// Done reports the flow's end. It is called once for each Route, last.
	Done(Result)
}

// Result is what there is to tell about a flow that has ended.
type Result struct {
	Up, Down                   int64 // bytes client to backend, and back, without headers
	DatagramsUp, DatagramsDown int64
	Duration                   time.Duration // from the first datagram
	Cause                      Cause
	Err                        error // the error behind Cause, if there is one
}

// Cause is why a flow ended.
type Cause uint8

// Every way a flow can end.
const (
	Idle     Cause = iota + 1 // no datagram for Route.Idle
	Removed                   // its endpoint or its listener is gone
	Evicted                   // it was the least recently used one when there was no more room
	Refused                   // its endpoint could not be reached, and Failed named no other
	Shutdown                  // the Loop was closed
	Internal                  // no socket could be had for it

	causes
)

// String returns the Cause in the words of the connection log.
func (c Cause) String() string {
	return [causes]string{"", "idle", "endpoint-removed", "evicted", "refused", "shutdown", "internal"}[c]
}
