package datagram

import "sync/atomic"

// Counts is what a Loop has done so far, and Flows what it has now. A datagram that
// was not passed on is in exactly one of the counts of datagrams.
type Counts struct {
	Flows   int64 // now; with those that wait for an answer, and up to 1,024 that are refused
	Opened  int64 // flows that got a socket
	Ended   map[Cause]int64
	Evicted int64 // made room for others, whether or not they had a socket
	Failed  int64 // an endpoint could not be reached
	Resent  int64 // datagrams that came back from such an endpoint and went to another

	// Datagrams that were dropped.
	Unrouted     int64 // the Router refused their client, or did not answer in time
	NoSocket     int64 // descriptors, ports or memory were lacking for their flow
	Full         int64 // the kernel had no room to send them: EAGAIN, ENOBUFS
	Denied       int64 // a firewall rule of this machine forbade to send them: EPERM
	Unsendable   int64 // anything else
	ReceiveFails int64 // calls, not datagrams: receiving failed for want of something
}

// counts is written by the Loop alone.
type counts struct {
	flows, opened, evicted, failed, resent                    atomic.Int64
	unrouted, noSocket, full, denied, unsendable, receiveFail atomic.Int64
	ended                                                     [causes]atomic.Int64
}

// Counts may be called from any goroutine.
func (l *Loop) Counts() Counts {
	c := &l.counts
	counts := Counts{
		Flows: c.flows.Load(), Opened: c.opened.Load(), Ended: map[Cause]int64{},
		Evicted: c.evicted.Load(), Failed: c.failed.Load(), Resent: c.resent.Load(),
		Unrouted: c.unrouted.Load(), NoSocket: c.noSocket.Load(), Full: c.full.Load(),
		Denied: c.denied.Load(), Unsendable: c.unsendable.Load(), ReceiveFails: c.receiveFail.Load(),
	}
	for cause := Idle; cause < causes; cause++ {
		counts.Ended[cause] = c.ended[cause].Load()
	}
	return counts
}

// Traffic is what one Listener has passed on so far.
type Traffic struct {
	Up, Down                   int64 // bytes
	DatagramsUp, DatagramsDown int64
}

type traffic struct{ up, down, datagramsUp, datagramsDown atomic.Int64 }

// Traffic may be called from any goroutine.
func (n *Listener) Traffic() Traffic {
	t := &n.traffic
	return Traffic{t.up.Load(), t.down.Load(), t.datagramsUp.Load(), t.datagramsDown.Load()}
}
