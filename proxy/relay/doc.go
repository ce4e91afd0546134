// Package relay moves the bytes of one accepted connection between its client
// and its backend, and tells how it ended.
//
// [Engine] is what package proxy asks for. [Copier] is the reference engine: two
// goroutines a pair and io.Copy, which on two TCP sockets makes the Go runtime
// use splice(2), so payload is never copied to user space. It is written to be
// read: whatever another engine does differently is a bug of that engine.
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
//   - Memory is bounded by not reading: there is never more than one pipe of data
//     a direction in our hands.
//
// The package does not dial, choose endpoints or log.
//
// It answers to ProxyTCP and copyBytes in pkg/proxy/userspace/proxysocket.go of
// the historical kube-proxy, which closed both sockets at the first EOF.
package relay
