package relay

import (
	"context"
	"net"
	"time"
)

// Pair is a client and the backend that was dialled for it.
type Pair struct {
	Client, Backend *net.TCPConn
	Limits          Limits
}

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

// Cause is what ended a pair.
type Cause uint8

// The causes. Closed means both directions ended with FIN, the named side's first.
const (
	ClientClosed Cause = iota + 1
	BackendClosed
	ClientReset
	BackendReset
	Idle
	HalfClosed
	Shutdown
	Internal
)

// Result is how a pair ended.
type Result struct {
	Up    int64 // bytes from client to backend
	Down  int64 // bytes from backend to client
	Cause Cause
	Err   error // the error behind Cause; nil for a clean close
}

// Engine relays pairs.
type Engine interface {
	// Relay takes over the pair, closes both connections and then calls done
	// exactly once. It may return before or after that. When ctx ends, the pair
	// is reset on both sides with Cause Shutdown.
	Relay(ctx context.Context, pair Pair, done func(Result))
}
