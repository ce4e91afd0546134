package proxy

import (
	"net/netip"
	"time"

	"github.com/kube-splice/kube-splice/proxy/datagram"
	"github.com/kube-splice/kube-splice/proxy/relay"
	"github.com/kube-splice/kube-splice/service"
)

// Record is what there is to tell about one connection that has ended.
type Record struct {
	Name     service.Name
	Scope    service.Scope  // the endpoints the client gets by the Service's traffic policy
	Client   netip.AddrPort // the true one, where a PROXY header named it
	Peer     netip.AddrPort // who connected, where that is somebody else; else zero
	UniqueID string         // what PROXY headers call the connection, in hexadecimal digits if it is no text; empty: nothing
	Original netip.AddrPort // where the client connected to; zero if unknown
	Backend  netip.AddrPort // the last one tried; zero if none was
	Attempts int            // dials
	ClientIP ClientIP       // how the backend knows the client; empty: none was reached
	Sticky   bool           // the backend was chosen by session affinity
	Dial     time.Duration  // from accept, or the PROXY header, to the backend's answer, failed dials included
	Duration time.Duration  // from accept to the end
	Ended    time.Time
	Up, Down int64 // bytes client to backend, and back
	// Datagrams that carried them; 0 for TCP.
	DatagramsUp, DatagramsDown int64
	Close                      Close
	Err                        error // the error behind Close, if there is one
	LogOff                     bool  // the Service keeps its connections out of the connection log
}

// Close is how a connection ended, in the words of the connection log.
type Close string

// Every way a connection can end.
const (
	ClientClosed  Close = "client-closed"  // both sides closed, the client first
	BackendClosed Close = "backend-closed" // both sides closed, the backend first
	ClientReset   Close = "client-reset"
	BackendReset  Close = "backend-reset"
	DialFailed    Close = "dial-failed"  // no endpoint answered in the time budget
	NoEndpoints   Close = "no-endpoints" // the last eligible endpoint left before one was reached
	RefusedDirect Close = "refused-direct"
	Denied        Close = "denied"     // not in the source ranges
	BadHeader     Close = "bad-header" // a trusted peer did not send the PROXY header it had to
	IdleLimit     Close = "idle"
	Removed       Close = "endpoint-removed" // UDP: the endpoint, or the Service port, is gone
	Evicted       Close = "evicted"          // UDP: the least recently used flow made room
	Refused       Close = "refused"          // UDP: no endpoint could be reached
	HalfClosed    Close = "half-closed"      // nothing moved for too long after one side had closed
	Shutdown      Close = "shutdown"
	Internal      Close = "internal"
)

var closeOf = map[relay.Cause]Close{
	relay.ClientClosed: ClientClosed, relay.BackendClosed: BackendClosed,
	relay.ClientReset: ClientReset, relay.BackendReset: BackendReset,
	relay.Idle: IdleLimit, relay.HalfClosed: HalfClosed,
	relay.Shutdown: Shutdown, relay.Internal: Internal,
}

var closeOfFlow = map[datagram.Cause]Close{
	datagram.Idle: IdleLimit, datagram.Removed: Removed, datagram.Evicted: Evicted,
	datagram.Refused: Refused, datagram.Shutdown: Shutdown, datagram.Internal: Internal,
}
