// Package proxy serves the Service ports: one listener for each scope of endpoints
// that a Service port's traffic policies tell apart, and for every connection
//
//	accept → admit → pick → dial (elsewhere, if need be) → relay → record
//
// A [Proxy] is driven by its owner, one goroutine, in three steps that bracket the
// packet rules: [Proxy.Open] opens the listeners a Snapshot wants and gives the
// balancers their endpoints; the owner then writes rules for the bindings it was
// given; [Proxy.Prune] closes what the Snapshot no longer has. So a rule never
// leads to a closed listener.
//
// A UDP flow, which package datagram relays, goes through the same but for dialling:
//
//	first datagram → admit → pick (elsewhere, if it refuses) → relay → record
//
// The control path (Open, Prune) and the data path (everything from accept on)
// share no lock: a connection reads its Service port through one atomic pointer.
//
// A listener without an eligible endpoint is kept parked: the port stays ours, rules
// stay as they are, and the kernel refuses connections before any handshake (see
// parked.go). So of a Service port with endpoints on other nodes only, one listener
// may refuse while the other serves; the Balancer and the counts are common to both.
//
// The package does not know where Services come from or how packets reach its
// listeners, and it leaves SCTP ports alone.
//
// It answers to proxier.go, proxysocket.go and port_allocator.go of
// pkg/proxy/userspace in the historical kube-proxy.
package proxy
