package relay

import (
	"errors"
	"net"
	"net/netip"
	"time"
)

// Engine accepts the connections of listeners, leads each to a backend that its Session
// names, and relays it.
type Engine interface {
	// Listen serves the connections that come to ln, which it takes over: the caller uses
	// ln no more, whether or not Listen fails.
	Listen(ln *net.TCPListener, h Handler) (Listener, error)
	// Descriptors is how many descriptors so many connections may take at present.
	Descriptors(connections int64) int64
	// Abort resets every connection there is, or still comes, with Cause Shutdown.
	Abort()
	// Close ends the engine when its Listeners are closed and its connections have ended.
	Close()
}

// Listener is a listening socket that an Engine has taken over. Its methods belong to
// one goroutine, its owner's.
type Listener interface {
	// Control runs op on the listening socket.
	Control(op func(fd int) error) error
	// Resume has an engine accept again that may have found the socket not listening.
	Resume()
	// Close closes the socket. Once it has returned, no Session begins from this
	// Listener; those begun go on.
	Close()
}

// Handler is asked about the connections of one Listener. The engine calls it on its data
// path, from several goroutines at once: its methods must not block.
type Handler interface {
	// Reserve says whether there is room for another connection, and counts it if so.
	Reserve() bool
	// Release takes back a Reserve that no Session came of.
	Release()
	// Short is told why connections that wait cannot be accepted at present; nil when
	// Reserve has said so. The engine tries again within a second.
	Short(err error)
	// TurnedAway is told of a client that was accepted and reset without a Session.
	TurnedAway(client netip.AddrPort, err error)
	// Arrive begins the Session of a client. The descriptor is the engine's; it may be
	// asked and set until Arrive returns.
	Arrive(fd int, client netip.AddrPort) Session
}

// Session decides about one connection. Its methods are called one after the other. It may
// also be a Preamble.
type Session interface {
	// Next says which backend to dial. failed is why the last one was not reached: nil at
	// first and after a wait, ErrNoAnswer when its time was over. An error ends the
	// connection: its client is reset, and Cause is Unserved.
	//
	// Nothing has been read from the client by then, so no byte is ever sent twice.
	Next(failed error) (Dial, error)
	// Prepare may set options of the backend's socket before it connects.
	Prepare(fd int) error
	// Connected is told that the backend was reached, and sets the limits.
	Connected() Limits
	// Done is called once, when the connection has ended and both sockets are closed.
	Done(Result)
}

// Dial is what a Session wants done next.
type Dial struct {
	Backend netip.AddrPort
	// Limit is how long the backend has to answer; above 0.
	Limit time.Duration
	// Wait, if above 0, is how long to wait before Next is to be asked again. Backend and
	// Limit do not matter then.
	Wait time.Duration
}

// ErrNoAnswer is why a backend was not reached that let its time pass.
var ErrNoAnswer = errors.New("no answer")

// Limits says when a pair on which no byte moves is given up.
type Limits struct {
	// HalfClosed is for a pair of which one direction has ended, or would if the
	// other side took what was received before its FIN; 0 means never.
	HalfClosed time.Duration
	// Idle is for every pair, half-closed ones too; 0 means never.
	Idle time.Duration
	// Unanswered is how long a peer may leave data or window probes unacknowledged;
	// then it counts as having reset. 0 means as long as the kernel goes on trying.
	Unanswered time.Duration
}

// Cause is what ended a connection.
type Cause uint8

// The causes. Closed means both directions ended with FIN, the named side's first.
// Unserved means that no backend was reached.
const (
	ClientClosed Cause = iota + 1
	BackendClosed
	ClientReset
	BackendReset
	Idle
	HalfClosed
	Shutdown
	Internal
	Unserved
)

// Result is how a connection ended.
type Result struct {
	Up    int64 // bytes from client to backend
	Down  int64 // bytes from backend to client
	Cause Cause
	Err   error // the error behind Cause; nil for a clean close
}

// Pauses after an accept that failed for want of something.
const shortestPause, longestPause = 5 * time.Millisecond, time.Second
