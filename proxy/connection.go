package proxy

import (
	"errors"
	"net/netip"
	"time"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/proxy/relay"
	"github.com/kube-splice/kube-splice/service"
)

// connection is one TCP connection, as the relay engine's Session: the engine calls its
// methods one after the other, on the data path, so none of them waits.
type connection struct {
	listener         *listener
	front            *front
	client, original netip.AddrPort
	pick             balancer.Pick // its endpoint is the last one tried; zero if none was
	search           *search       // nil once a backend has answered
	announced        *announced    // nil: no PROXY header added anything
	accepted         time.Time
	dial             time.Duration // from when the client was admitted to the backend's answer
	attempts         uint32
	scope            service.Scope
	picked           bool // pick is to be ended
	connected        bool
	preserve         bool // the endpoint is to see the client's address
	preserving       bool // the last one tried does
}

// Arrive implements relay.Handler: it admits a client, or remembers why not, unless that is
// for its PROXY header to decide.
func (l *listener) Arrive(fd int, client netip.AddrPort) relay.Session {
	l.proxy.counters.accepted.Add(1)
	l.of.tally.accepted.Add(1)
	c := &connection{
		listener: l, front: l.of.front.Load(), client: client, scope: l.scope,
		accepted: time.Now(), search: &search{},
	}
	s := c.search
	s.began, s.heading = c.accepted, l.proxy.believes(client, c.front.port)
	if s.denied = c.locate(fd); s.denied == nil {
		s.denied = c.admit()
	}
	s.heading = s.heading && s.denied == nil
	return c
}

// Connected implements relay.Session.
func (c *connection) Connected() relay.Limits {
	p := c.listener.proxy
	c.pick.Connected(time.Since(c.search.tried))
	c.found()
	c.connected = true
	if c.preserve && !c.preserving {
		p.counters.hidden.Add(1)
	}
	c.listener.of.tally.active.Add(1)
	return relay.Limits{HalfClosed: p.cfg.HalfClosed, Idle: c.front.port.Policy.IdleTimeout, Unanswered: p.cfg.unanswered()}
}

// found ends the search for a backend, whether or not there is one.
func (c *connection) found() {
	c.dial, c.search = time.Since(c.search.began), nil
	c.listener.proxy.counters.retries.Add(int64(max(c.attempts, 1) - 1))
}

// Done implements relay.Session: it tells the world that the connection is over.
func (c *connection) Done(r relay.Result) {
	p := c.listener.proxy
	why := closeOf[r.Cause]
	if c.picked {
		c.pick.Done()
	}
	if c.connected {
		c.listener.of.tally.active.Add(-1)
		p.relayed(c.listener.of, r.Up, r.Down)
	} else {
		if r.Cause == relay.Unserved {
			why = c.whyNot(r.Err)
		}
		c.found()
	}
	rec := c.record()
	rec.Up, rec.Down, rec.Close, rec.Err = r.Up, r.Down, why, r.Err
	if why == BadHeader {
		rec.Err = noHeader(r.Err)
	}
	p.counters.active.Add(-1) // who reads the record finds it gone
	p.cfg.Record(rec)
	p.conns.Done()
}

// record returns what there is to tell about a connection that ends now.
func (c *connection) record() Record {
	now := time.Now()
	r := Record{
		Name: c.listener.of.name, Scope: c.scope,
		Client: c.client, Original: c.original, Backend: c.pick.Endpoint,
		Attempts: int(c.attempts), Sticky: c.pick.Sticky,
		Dial: c.dial, Duration: now.Sub(c.accepted), Ended: now,
		LogOff: c.front.port.Policy.LogOff,
	}
	if c.connected {
		r.ClientIP = c.seen()
	}
	c.announced.announce(&r)
	return r
}

// whyNot says, and counts, why no backend was reached.
func (c *connection) whyNot(err error) Close {
	p := c.listener.proxy
	switch {
	case c.search.denied != nil:
		return p.notAdmitted(err)
	case c.search.heading:
		p.counters.badHeader.Add(1)
		return BadHeader
	case p.ctx.Err() != nil:
		return Shutdown
	case errors.Is(err, balancer.ErrNoEndpoints) || c.listener.of.eligible[c.scope].Load() == 0:
		p.counters.noEndpoints.Add(1)
		return NoEndpoints
	default:
		p.counters.dialFailed.Add(1)
		return DialFailed
	}
}
