package relay

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Copier is the reference Engine: a goroutine for each listener, and two for each
// connection, which io.Copy relays.
type Copier struct {
	ctx     context.Context // ends when connections are to be reset
	abort   context.CancelFunc
	sweeper sweeper
	waiting atomic.Int64 // clients accepted that wait for room
	conns   sync.WaitGroup
}

// NewCopier returns a Copier. Close ends it.
func NewCopier() *Copier {
	c := &Copier{}
	c.ctx, c.abort = context.WithCancel(context.Background())
	return c
}

// Descriptors implements Engine: two sockets, and a pipe in each direction.
func (c *Copier) Descriptors(connections int64) int64 { return (2 + 2*2) * connections }

// Abort implements Engine.
func (c *Copier) Abort() { c.abort() }

// Close implements Engine.
func (c *Copier) Close() {
	c.abort()
	c.conns.Wait()
}

// relay moves the bytes of a pair until it ends, and closes both connections.
func (c *Copier) relay(client, backend *net.TCPConn, limits Limits) Result {
	p := &pairState{
		limits:  limits,
		client:  &side{conn: client, closed: ClientClosed, reset: ClientReset},
		backend: &side{conn: backend, closed: BackendClosed, reset: BackendReset},
	}
	for _, s := range []*side{p.client, p.backend} {
		// Should this process die, the kernel is to reset both: a FIN would make
		// truncated data look complete.
		_ = s.conn.SetLinger(0)
	}
	p.watch.moved = p.moved
	p.watch.set(p.limits.Idle, func() { p.abort(Idle, nil, p.client, p.backend) })
	unbind := context.AfterFunc(c.ctx, p.shutdown)
	c.sweeper.add(p)

	var result Result
	var down sync.WaitGroup
	down.Go(func() { result.Down = p.copy(p.client, p.backend) })
	result.Up = p.copy(p.backend, p.client)
	down.Wait()

	unbind()
	c.sweeper.remove(p)
	p.watch.stop()
	result.Cause, result.Err = p.close(c.ctx)
	return result
}

// pairState is one pair on its way. The two copying goroutines, the watch's timer
// and the context's end meet in its mutex; nothing else is shared.
type pairState struct {
	limits          Limits
	client, backend *side
	watch           watch

	mu    sync.Mutex
	cause Cause // why the pair ends; set once, except that a FIN gives way to anything worse
	err   error
	over  bool // the result is told; nothing changes it any more
}

// side is one of the two connections.
type side struct {
	conn          *net.TCPConn
	closed, reset Cause       // what it is called when this side does it
	finSent       atomic.Bool // we shut down our writing half
	aborted       bool        // this side is gone, or we gave it up; guarded by pairState.mu
}

// copy moves bytes from src to dst until src ends or either fails, passes the end
// on, and returns how many bytes src's peer got written to dst.
func (p *pairState) copy(dst, src *side) int64 {
	n, err := copyToEnd(dst.conn, src.conn)
	switch {
	case err != nil:
		p.failed(dst, src, err)
	case src.wasReset():
		p.abort(src.reset, errReset, src)
	default:
		p.finished(dst, src)
	}
	return n
}

// finished passes src's FIN on to dst.
func (p *pairState) finished(dst, src *side) {
	p.ending(src) // before dst hears of it: its own FIN may be back at once
	dst.finSent.Store(true)
	// An error means that dst is already gone, which the other direction finds
	// and reports.
	_ = dst.conn.CloseWrite()
}

// ending notes which side ended its direction first.
func (p *pairState) ending(src *side) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause != 0 {
		return
	}
	p.cause = src.closed
	if limit := p.limits.HalfClosed; limit > 0 && (p.limits.Idle <= 0 || limit < p.limits.Idle) {
		p.watch.set(limit, func() { p.abort(HalfClosed, nil, p.client, p.backend) })
	}
}

// failed finds out whose fault a copy error was. io.Copy does not say whether
// reading or writing failed, but a connection that was reset or timed out is in
// the state CLOSE, and one that works is not.
func (p *pairState) failed(dst, src *side, err error) {
	switch {
	case p.ended():
		// We ended the pair ourselves; err is only the deadline that says so.
	case src.state() == tcpClose:
		p.abort(src.reset, err, src)
	case dst.state() == tcpClose:
		p.abort(dst.reset, err, dst)
	default:
		p.abort(Internal, err, src, dst)
	}
}

// ended reports whether the pair has been given up.
func (p *pairState) ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.givenUp()
}

func (p *pairState) givenUp() bool { return p.client.aborted || p.backend.aborted }

// abort gives the pair up because of the sides named: nothing is read for them
// or written to them any more. What came from them and is still on its way to the
// other side is delivered, as long as that side takes it.
func (p *pairState) abort(cause Cause, err error, gone ...*side) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || p.givenUp() {
		return
	}
	p.cause, p.err = cause, err
	for _, s := range gone {
		s.aborted = true
	}
	if p.client.aborted {
		stop(p.client, p.backend)
	}
	if p.backend.aborted {
		stop(p.backend, p.client)
	}
	p.watch.set(deliveryLimit, p.stopDelivery)
}

// stopDelivery gives up a side that takes nothing of what was received for it.
func (p *pairState) stopDelivery() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	p.client.aborted, p.backend.aborted = true, true
	stop(p.client, p.backend)
	stop(p.backend, p.client)
}

// stop ends the copying from src to dst.
func stop(dst, src *side) {
	now := time.Now()
	_ = src.conn.SetReadDeadline(now)
	_ = dst.conn.SetWriteDeadline(now)
}

// shutdown, called when the context ends, resets both sides.
func (p *pairState) shutdown() { p.abort(Shutdown, nil, p.client, p.backend) }

// close closes both connections in the way the pair ended: with FIN after a clean
// end, with RST otherwise.
func (p *pairState) close(ctx context.Context) (Cause, error) {
	p.mu.Lock()
	p.over = true // from here on nothing below changes
	p.mu.Unlock()
	for _, s := range []*side{p.client, p.backend} {
		switch { // SO_LINGER in socket(7): with 0, closing sends RST
		case !p.givenUp():
			_ = s.conn.SetLinger(-1)
		case !s.aborted:
			s.awaitDelivery(ctx)
		}
		_ = s.conn.Close()
	}
	return p.cause, p.err
}
