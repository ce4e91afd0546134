// Package relay serves the connections of listeners: it accepts them, dials the backend
// that a [Session] names, moves the bytes, and tells how each connection ended.
//
// [Engine] is what package proxy asks for. There are two. [Copier] is the reference: two
// goroutines a connection and io.Copy. It is written to be read: what another engine does
// differently is a bug of that engine. [Loops], the default, is the fast one:
//
//	            epoll instance, which Go's poller watches (poller.go)
//	                 │ events             ▲ watch
//	                 ▼                    │
//	acceptor ──fd──> pair: heading ────> dialing ──> relaying ──────────> ended
//	(acceptor.go)   (preamble.go)   (dialing.go)    (pair.go, stream.go)    ▲
//	     │                │               │             │ a side is gone    │
//	     │                └── unserved ───┴─┐           └> delivering ──────┤
//	     │ another loop has fewer           │              (ending.go)      │
//	     ▼                                  └───────────────────────────────┘
//	that loop
//
// A pair is heading only if its Session wants a [Preamble] from the client.
// A loop is one goroutine that owns its pairs. No call that it makes blocks: a pair moves
// what it can in a turn, remembers which of its sockets had nothing more to give or to
// take, and is called again when the kernel says that this has changed (epoll(7),
// edge-triggered). So a pair at rest is two descriptors and one plain struct: it has no
// goroutine, no buffer, no pipe, and a timer only as a place in the loop's heap
// (timers.go, limits.go). Small data is copied through one buffer that all pairs of a loop
// share. A direction that fills the buffer again and again is spliced (splice(2)), with
// a pipe that it gives back when it runs dry (pipes.go).
//
// The contract of every engine:
//
//   - Half-close is passed on: EOF on one side becomes shutdown-write on the
//     other, and the opposite direction goes on (RFC 9293, 3.6).
//   - A reset stays a reset. When one side aborts, what was received from it is
//     delivered first, then the other side is reset, so that truncated data is
//     never mistaken for complete data.
//   - That holds, within some seconds, while the other side takes nothing: a pair
//     does not outlive a side that is gone because of one that hangs.
//   - A half-closed pair on which no byte moves for Limits.HalfClosed is ended.
//     A fully open pair is ended only by Limits.Idle, which is off by default.
//   - Memory is bounded by not reading: there is never more than one pipe or buffer of
//     data a direction in our hands.
//   - A pair that has much to move does not keep others waiting: what it may move in a turn
//     is bounded.
//
// The package does not choose endpoints, admit clients or log.
//
// It answers to ProxyLoop, ProxyTCP and copyBytes in pkg/proxy/userspace/proxysocket.go of
// the historical kube-proxy, which closed both sockets at the first EOF.
package relay
