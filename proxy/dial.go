package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/proxy/relay"
	"github.com/kube-splice/kube-splice/service"
)

// tryLimits bound the first tries, as the historical kube-proxy did, so that one
// silent endpoint costs little of the budget; later tries may take what is left.
var tryLimits = [...]time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}

// search is what a connection has to remember until it has a backend.
type search struct {
	denied  error            // why the client was not admitted
	heading bool             // its PROXY header has not come yet
	began   time.Time        // when it was admitted
	failed  []netip.AddrPort // not to be tried again
	silent  []netip.AddrPort // did not answer in a short try; another round may find them
	hide    bool             // no more tries from the client's address
	pause   time.Duration    // the last one, after which more was to be had
	last    error
	tried   time.Time // when the last try began
}

// Next implements relay.Session. It looks for a backend: the balancer's choice, and every
// other endpoint in turn while dials fail, all within the dial budget. Endpoints that
// were only slow to answer are asked again when no other is left.
func (c *connection) Next(failed error) (relay.Dial, error) {
	p, s := c.listener.proxy, c.search
	if s.denied != nil {
		return relay.Dial{}, s.denied
	}
	wait := time.Duration(0)
	if failed != nil {
		wait = c.blame(fmt.Errorf("dial %v: %w", c.pick.Endpoint, failed))
	}
	for {
		left := p.cfg.DialTimeout - time.Since(s.began)
		switch {
		case p.ctx.Err() != nil:
			return relay.Dial{}, p.ctx.Err()
		case left <= 0:
			return relay.Dial{}, c.outOfTime()
		case wait > 0:
			return relay.Dial{Wait: min(wait, left)}, nil
		}
		if err := c.choose(); err != nil {
			return relay.Dial{}, err
		}
		if err := p.mayDial(service.TCP, c.pick.Endpoint); err != nil {
			wait = c.blame(err)
			continue
		}
		if c.attempts < uint32(len(tryLimits)) {
			left = min(left, tryLimits[c.attempts])
		}
		c.attempts++
		s.tried = time.Now()
		return relay.Dial{Backend: c.pick.Endpoint, Limit: left}, nil
	}
}

func (c *connection) outOfTime() error {
	if c.search.last == nil {
		return fmt.Errorf("no endpoint reached within %v", c.listener.proxy.cfg.DialTimeout)
	}
	return fmt.Errorf("no endpoint reached within %v: %w", c.listener.proxy.cfg.DialTimeout, c.search.last)
}

// choose asks the balancer for an endpoint that has not failed.
func (c *connection) choose() error {
	s, b := c.search, c.listener.of.balancer
	pick, err := b.Pick(c.scope, c.client.Addr(), slices.Concat(s.failed, s.silent))
	if err != nil && len(s.silent) > 0 {
		// What kept them silent may be that answers to the client's address go elsewhere.
		s.silent, s.hide = nil, true
		pick, err = b.Pick(c.scope, c.client.Addr(), s.failed)
	}
	switch {
	case err == nil:
		c.pick, c.picked = pick, true
	case s.last != nil:
		err = s.last // says more than that nobody is left
	}
	return err
}

// blame takes a failed try to whose fault it was, and says how long to wait before the
// next one.
func (c *connection) blame(err error) time.Duration {
	p, s := c.listener.proxy, c.search
	s.last = err
	c.picked = false
	switch {
	case p.ctx.Err() != nil: // we are shutting down
		c.pick.Done()
	case c.preserving && errors.Is(err, unix.EADDRNOTAVAIL): // of the client's; the node has its own
		c.pick.Done()
		c.attempts--
		s.hide = true
	case isShortage(err): // we lack something; the endpoint may be fine
		c.pick.Done()
		c.attempts-- // the endpoint was not asked
		p.shortage.note(err)
		s.pause = min(max(2*s.pause, 5*time.Millisecond), time.Second)
		return s.pause
	default:
		c.pick.Failed()
		p.counters.failedTries.Add(1)
		c.listener.of.tally.failedTries.Add(1)
		p.cfg.Log.Debug("dial failed", "service", c.listener.name().String(), "endpoint", c.pick.Endpoint.String(), "error", err)
		if errors.Is(err, relay.ErrNoAnswer) {
			s.silent = append(s.silent, c.pick.Endpoint)
		} else {
			s.failed = append(s.failed, c.pick.Endpoint)
		}
	}
	return 0
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

// setKeepAlive does what net.KeepAliveConfig says.
func setKeepAlive(fd int, k net.KeepAliveConfig) error {
	if !k.Enable {
		return nil
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1); err != nil {
		return os.NewSyscallError("setsockopt SO_KEEPALIVE", err)
	}
	for _, option := range [...]struct{ name, value, usual int }{
		{unix.TCP_KEEPIDLE, int(seconds(k.Idle)), goKeepAlive},
		{unix.TCP_KEEPINTVL, int(seconds(k.Interval)), goKeepAlive},
		{unix.TCP_KEEPCNT, k.Count, goKeepProbes},
	} {
		if option.value == 0 {
			option.value = option.usual
		}
		if option.value < 0 {
			continue // the system's
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option.name, option.value); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return nil
}

// seconds rounds up, as the kernel knows no less.
func seconds(d time.Duration) time.Duration {
	return (d + time.Second - 1) / time.Second
}
