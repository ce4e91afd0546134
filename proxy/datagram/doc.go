// Package datagram relays UDP: one listening socket for each Service port, and for
// each client of it a flow, which is a socket connected to the endpoint it was given.
//
//	client ──> listening socket ─ recvmmsg ─> flow ─ sendmmsg ─> its socket ──> endpoint
//	       <── sendmmsg, from the address <── flow <─ recvmmsg ─ its socket <──
//	           the client used
//
// A [Loop] is one goroutine that owns an epoll instance, the listening sockets, the
// flows and all buffers:
//
//	Loop ─┬─ Listener ── table: client and local address -> flow
//	      ├─ ages: for each idle limit the flows in the order of their last use
//	      ├─ sockets: descriptor -> flow
//	      └─ inbox, outbox: 64 datagrams at a time, for whoever's turn it is
//
// So an idle flow costs a descriptor and some two hundred bytes: no goroutine, no timer,
// no buffer. Others talk to the Loop by putting calls into a channel; nobody shares a
// lock with it.
//
// The owner says by a [Router] where a new flow goes and is told by a [Token] how it
// fares: that its endpoint could not be reached, and in the end what it carried and why
// it ended. What the package promises:
//
//   - A datagram passes whole, whatever its size, or not at all; empty ones too. Those
//     of one client stay in their order. The TOS byte or traffic class goes with them.
//   - A reply leaves from the address and port that the client used.
//   - A flow ends when neither direction was used for its idle limit, when its endpoint
//     goes, or when it is the least recently used one and another needs its place.
//   - An endpoint's "port unreachable" costs no other datagram: see unreachable.go.
//   - A parked Listener keeps its port while the kernel refuses its clients.
//   - Lack of descriptors, ports or memory is counted and survived.
//
// Whether the client forbade to fragment a datagram cannot be told by a UDP socket;
// ours allow it.
//
// The package does not choose endpoints, log, or know what a Service is. [Conntrack],
// which tells what NAT hid from the sockets, stands beside the Loop: a Router may use it.
//
// It answers to proxyUDP and udpProxySocket in pkg/proxy/userspace/proxysocket.go of
// the historical kube-proxy: a socket and a goroutine a client, dialled in the reader,
// 4 KiB a datagram, 250 ms idle.
package datagram
