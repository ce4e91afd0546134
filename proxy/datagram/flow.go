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
	apart    bool // the kernel could not cut joined datagrams on its way

	started, used int64 // on the Loop's clock
	up, down      int64
	ups, downs    int64 // datagrams
}

// state is how far a flow has got.
type state uint8

const (
	asking  state = iota // its Router will answer later
	open                 // it has a socket
	refused              // it has none and gets none
	ended
)

// What a flow without a socket may last.
const (
	askingLimit  = 5 * time.Second
	refusedLimit = time.Second
)

// client returns the flow's client as a socket address.
func (f *flow) client() peer { return peer{f.clientIP, f.clientPort} }

// add makes f a flow of its listener that lasts for limit after its last use.
func (l *Loop) add(f *flow, s state, limit time.Duration) {
	f.state = s
	f.listener.flows.insert(f)
	l.limit(f, limit)
	l.flows++
	l.counts.flows.Store(int64(l.flows))
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
	l.flows--
	l.counts.flows.Store(int64(l.flows))
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
