package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
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

// dialing is the search for a backend for one connection.
type dialing struct {
	*Proxy
	listener *listener
	rec      *Record
	failed   []netip.AddrPort // not to be tried again
	silent   []netip.AddrPort // did not answer in a short try; another round may find them
	pause    time.Duration
	last     error
}

// connect reaches a backend for a client: the balancer's choice, and every other
// endpoint in turn while dials fail, all within the dial budget. Endpoints that
// were only slow to answer are asked again when no other is left. The result's
// Pick is to be ended with Done.
//
// Nothing has been read from the client yet, so no byte is ever sent twice.
func (p *Proxy) connect(l *listener, rec *Record) (*net.TCPConn, balancer.Pick, error) {
	ctx, cancel := context.WithTimeout(p.ctx, p.cfg.DialTimeout)
	defer cancel()
	d := &dialing{Proxy: p, listener: l, rec: rec}
	for {
		pick, err := d.pick()
		if err != nil {
			return nil, pick, err
		}
		conn, err := d.try(ctx, pick)
		if err == nil {
			return conn, pick, nil
		}
		d.blame(ctx, pick, err)
		if ctx.Err() != nil {
			return nil, pick, fmt.Errorf("no endpoint reached within %v: %w", p.cfg.DialTimeout, err)
		}
	}
}

// pick asks the balancer for an endpoint that has not failed.
func (d *dialing) pick() (balancer.Pick, error) {
	client := d.rec.Client.Addr()
	pick, err := d.listener.of.balancer.Pick(d.rec.Scope, client, slices.Concat(d.failed, d.silent))
	if err != nil && len(d.silent) > 0 {
		d.silent = nil
		pick, err = d.listener.of.balancer.Pick(d.rec.Scope, client, d.failed)
	}
	if err != nil && d.last != nil {
		err = d.last // says more than that nobody is left
	}
	if err == nil {
		d.rec.Backend, d.rec.Sticky = pick.Endpoint, pick.Sticky
	}
	return pick, err
}

// blame takes a failed try to whose fault it was.
func (d *dialing) blame(ctx context.Context, pick balancer.Pick, err error) {
	d.last = err
	switch {
	case d.ctx.Err() != nil: // we are shutting down
		pick.Done()
	case isShortage(err): // we lack something; the endpoint may be fine
		pick.Done()
		d.rec.Attempts-- // the endpoint was not asked
		d.shortage.note(err)
		d.pause = min(max(2*d.pause, 5*time.Millisecond), time.Second)
		sleep(ctx, d.pause)
	default:
		pick.Failed()
		d.counters.failedTries.Add(1)
		d.listener.of.tally.failedTries.Add(1)
		d.cfg.Log.Debug("dial failed", "service", d.listener.name().String(), "endpoint", pick.Endpoint.String(), "error", err)
		if errors.Is(err, context.DeadlineExceeded) {
			d.silent = append(d.silent, pick.Endpoint)
		} else {
			d.failed = append(d.failed, pick.Endpoint)
		}
	}
}

// try dials one endpoint.
func (d *dialing) try(ctx context.Context, pick balancer.Pick) (*net.TCPConn, error) {
	if err := d.mayDial(service.TCP, pick.Endpoint); err != nil {
		return nil, err
	}
	if d.rec.Attempts < len(tryLimits) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, tryLimits[d.rec.Attempts])
		defer cancel()
	}
	d.rec.Attempts++
	started := time.Now()
	dialer := net.Dialer{KeepAlive: d.cfg.keepAlive(), KeepAliveConfig: d.cfg.KeepAlive, Control: d.setMark}
	conn, err := dialer.DialTCP(ctx, "tcp", netip.AddrPort{}, pick.Endpoint)
	switch {
	case err == nil:
		pick.Connected(time.Since(started))
	case errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil: // the socket's deadline may strike before ctx's
		err = fmt.Errorf("dial %v: no answer after %v: %w", pick.Endpoint, time.Since(started).Round(time.Millisecond), context.DeadlineExceeded)
	}
	return conn, err
}

// mayDial returns why an endpoint must not be dialled, or nil.
func (p *Proxy) mayDial(protocol service.Protocol, endpoint netip.AddrPort) error {
	if err := service.CheckEndpoint(endpoint.Addr()); err != nil {
		return fmt.Errorf("refuse to dial %v: it is %w", endpoint, err)
	}
	if p.isOwnListener(protocol, endpoint) {
		return fmt.Errorf("refuse to dial %v: it is a listener of this proxy", endpoint)
	}
	return nil
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
