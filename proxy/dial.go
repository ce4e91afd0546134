package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/service"
)

// tryLimits bound the first tries, as the historical kube-proxy did, so that one
// silent endpoint costs little of the budget; later tries may take what is left.
var tryLimits = [...]time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}

// tried is where a connection has been refused or not answered so far.
type tried struct {
	failed []netip.AddrPort // not to be tried again
	silent []netip.AddrPort // did not answer in a short try; another round may find them
}

func (t *tried) all() []netip.AddrPort { return slices.Concat(t.failed, t.silent) }

// connect reaches a backend for a client: the balancer's choice, and every other
// endpoint in turn while dials fail, all within the dial budget. Endpoints that
// were only slow to answer are asked again when no other is left. The result's
// Pick is to be ended with Done.
//
// Nothing has been read from the client yet, so no byte is ever sent twice.
func (p *Proxy) connect(l *listener, rec *Record) (*net.TCPConn, balancer.Pick, error) {
	ctx, cancel := context.WithTimeout(p.ctx, p.cfg.DialTimeout)
	defer cancel()
	var tried tried
	var last error
	pause := time.Duration(0)
	for {
		pick, err := l.balancer.Pick(rec.Client.Addr(), tried.all())
		switch {
		case err != nil && len(tried.silent) > 0 && l.eligible.Load() > 0 && ctx.Err() == nil:
			tried.silent = nil
			continue
		case err != nil && last != nil:
			return nil, pick, last
		case err != nil:
			return nil, pick, err
		}
		rec.Backend, rec.Sticky = pick.Endpoint, pick.Sticky
		conn, err := p.try(ctx, pick, rec.Attempts)
		if err == nil {
			rec.Attempts++
			return conn, pick, nil
		}
		switch {
		case p.ctx.Err() != nil: // our own end, not the endpoint's fault
			pick.Done()
			return nil, pick, err
		case isShortage(err):
			pick.Done()
			p.shortage.note(err)
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			sleep(ctx, pause)
		default:
			pick.Failed()
			rec.Attempts++
			p.counters.failedTries.Add(1)
			tried.add(pick.Endpoint, err)
		}
		if ctx.Err() != nil {
			return nil, pick, fmt.Errorf("no endpoint reached within %v: %w", p.cfg.DialTimeout, err)
		}
		last = err
	}
}

// add notes a failed try.
func (t *tried) add(endpoint netip.AddrPort, err error) {
	if errors.Is(err, context.DeadlineExceeded) {
		t.silent = append(t.silent, endpoint)
	} else {
		t.failed = append(t.failed, endpoint)
	}
}

// try dials one endpoint, the n-th of this connection.
func (p *Proxy) try(ctx context.Context, pick balancer.Pick, n int) (*net.TCPConn, error) {
	if err := service.CheckEndpoint(pick.Endpoint.Addr()); err != nil {
		return nil, fmt.Errorf("refuse to dial %v: it is %w", pick.Endpoint, err)
	}
	if p.isOwnListener(pick.Endpoint) {
		return nil, fmt.Errorf("refuse to dial %v: it is a listener of this proxy", pick.Endpoint)
	}
	if n < len(tryLimits) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, tryLimits[n])
		defer cancel()
	}
	started := time.Now()
	dialer := net.Dialer{KeepAliveConfig: p.cfg.KeepAlive, Control: p.setMark}
	conn, err := dialer.DialTCP(ctx, "tcp", netip.AddrPort{}, pick.Endpoint)
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("dial %v: no answer after %v: %w", pick.Endpoint, time.Since(started).Round(time.Millisecond), context.DeadlineExceeded)
	}
	if err == nil {
		pick.Connected(time.Since(started))
	}
	return conn, err
}

// setMark marks a socket before it connects, so that the rules of the host's own
// traffic let it pass even to an endpoint whose address is a Service's.
func (p *Proxy) setMark(_, _ string, raw syscall.RawConn) error {
	if p.cfg.Mark == 0 {
		return nil
	}
	var opErr error
	if err := raw.Control(func(fd uintptr) {
		opErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, p.cfg.Mark)
	}); err != nil {
		return err
	}
	if opErr != nil {
		return fmt.Errorf("set the socket's mark (needs CAP_NET_ADMIN): %w", opErr)
	}
	return nil
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
