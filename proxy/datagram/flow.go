package datagram

import (
	"time"
)

// flow is one client's datagrams to one local address, and their answers. It is the
// Loop's. There may be many of them and most are idle, so it has neither buffer nor
// timer nor goroutine, and is small: 176 bytes.
type flow struct {
	key
	state state
	fd    int32 // connected to the backend; -1: none

	chained      *flow // in the table
	newer, older *flow // in the age list
	age          *age
	listener     *Listener
	token        Token // nil unless open
	backend      peer

	// resent counts what was sent again since the client's last datagram; lastSize is
	// that one's size. See Loop.resend.
	resent   uint8
	lastSize uint16
	apart    bool  // the kernel could not cut joined datagrams on its way
	expected uint8 // how many datagrams to receive next; 0: one. See flow.expect

	started, used int64 // on the Loop's clock
	up, down      int64
	ups, downs    int64 // datagrams
}

// state is how far a flow has got.
type state uint8

const (
	asking   state = iota // its Router will answer later
	open                  // it has a socket
	refused               // it has none and gets none, by its Router's word
	unserved              // as refused, but because no socket could be had for it
	ended
)

// What a flow without a socket may last.
const (
	askingLimit     = 5 * time.Second
	turnedAwayLimit = time.Second
)

// mostTurnedAway is how many clients that are turned away are remembered at once.
const mostTurnedAway = 1024

// client returns the flow's client as a socket address.
func (f *flow) client() peer { return peer{f.clientIP, f.clientPort} }

// add makes f a flow of its listener that lasts for limit after its last use. The
// least recently used ones make room for it.
func (l *Loop) add(f *flow, s state, limit time.Duration) {
	for l.flows >= l.cfg.MaxFlows && l.evict() {
	}
	f.state = s
	f.listener.flows.insert(f)
	l.limit(f, limit)
	l.count(f, 1)
}

// turnAway remembers for a while that f is refused or unserved. Anybody can forge the
// sources of any number of such clients. So they are kept apart from flows, where they
// make nobody leave, and those that are too many are not remembered.
func (l *Loop) turnAway(f *flow, s state) {
	f.state = s
	if l.turnedAwayNow == mostTurnedAway {
		return
	}
	f.listener.flows.insert(f)
	f.used = l.now
	l.turnedAway.push(f)
	l.count(f, 1)
}

// isTurnedAway reports whether f has no socket and gets none.
func (f *flow) isTurnedAway() bool { return f.state == refused || f.state == unserved }

// count notes that there are n more flows of f's kind.
func (l *Loop) count(f *flow, n int) {
	if f.isTurnedAway() {
		l.turnedAwayNow += n
	} else {
		l.flows += n
	}
	l.counts.flows.Store(int64(l.flows + l.turnedAwayNow))
}

// end ends f, in whatever state it is, and tells its owner.
func (l *Loop) end(f *flow, cause Cause, err error) {
	if f.state == ended {
		return
	}
	l.sendReplies() // they count for f
	if f.state == asking {
		l.counts.unrouted.Add(int64(len(l.held[f])))
		delete(l.held, f)
	}
	f.age.remove(f)
	f.listener.flows.remove(f)
	l.count(f, -1)
	l.closeSocket(f)
	f.state = ended
	l.tell(f, cause, err)
}

// tell tells f's owner, if it has one, that f has ended.
func (l *Loop) tell(f *flow, cause Cause, err error) {
	token := f.token
	if f.token = nil; token == nil {
		return
	}
	l.counts.ended[cause].Add(1)
	token.Done(Result{
		Up: f.up, Down: f.down, DatagramsUp: f.ups, DatagramsDown: f.downs,
		Duration: time.Duration(l.now - f.started), Cause: cause, Err: err,
	})
}
