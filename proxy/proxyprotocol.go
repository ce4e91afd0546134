package proxy

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/gaissmai/bart"

	"github.com/kube-splice/kube-splice/proxy/header"
	"github.com/kube-splice/kube-splice/proxy/relay"
	"github.com/kube-splice/kube-splice/service"
)

// announced is what PROXY headers, received or sent, add to a connection.
type announced struct {
	peer        netip.AddrPort // who connected
	destination netip.AddrPort // where the client connected to, as the peer says; zero: it does not
	id          string         // names the connection in the logs of all proxies; empty: nothing does
}

var _ relay.Preamble = (*connection)(nil)

// errHeader is why a connection whose peer had to send a PROXY header ended before that was
// there.
var errHeader = errors.New("PROXY header")

// trusted returns the peers that are believed; nil stands for none.
func trusted(peers []netip.Prefix) *bart.Lite {
	if len(peers) == 0 {
		return nil
	}
	trie := new(bart.Lite)
	for _, peer := range peers {
		trie.Insert(peer)
	}
	return trie
}

// believes reports whether a peer is to send a PROXY header to that Service port. Who is not
// trusted sends none: what looks like one is its data.
func (p *Proxy) believes(peer netip.AddrPort, to *service.Port) bool {
	return to.Policy.AcceptProxy && p.trusted != nil && p.trusted.Contains(peer.Addr())
}

// errNobodyTrusted is what is wrong with a Service that wants headers.
var errNobodyTrusted = errors.New("no peer is trusted: say which with --proxy-protocol-trusted-cidrs")

// noteUntrusted says that a Service port wants headers and nobody is to send any.
func (p *Proxy) noteUntrusted(port *service.Port) {
	if port.Policy.AcceptProxy && port.Name.Protocol == service.TCP && p.trusted == nil {
		p.troubles.note(port.Name, "accept PROXY headers", errNobodyTrusted)
	}
}

// Expect implements relay.Preamble.
func (c *connection) Expect() time.Duration {
	if !c.search.heading {
		return 0
	}
	return c.listener.proxy.cfg.HeaderTimeout
}

// Received implements relay.Preamble: from here on the client is whom the header names, or
// the peer, if that names none. It is judged by what holds now.
func (c *connection) Received(b []byte) (int, error) {
	h, size, err := header.Parse(b)
	if err != nil || size == 0 {
		return 0, err
	}
	if h.Source.IsValid() || h.UniqueID != "" {
		c.announced = &announced{peer: c.client, destination: h.Destination, id: h.UniqueID}
	}
	if h.Source.IsValid() {
		c.client = h.Source
	}
	c.front = c.listener.of.front.Load()
	c.search.heading, c.search.began = false, time.Now()
	c.search.denied = c.admit()
	return size, nil
}

// Announce implements relay.Preamble. A connection that came with a name keeps it.
func (c *connection) Announce() []byte {
	policy := &c.front.port.Policy
	if policy.SendProxy == 0 {
		return nil
	}
	if c.announced == nil {
		c.announced = &announced{peer: c.client}
	}
	h := header.Header{Source: c.client, Destination: c.original}
	if c.announced.destination.IsValid() {
		h.Destination = c.announced.destination
	}
	if policy.SendProxy == 2 {
		if c.announced.id == "" {
			c.announced.id = rand.Text()
		}
		h.UniqueID, h.VPCEndpoint = c.announced.id, policy.VPCEndpoint
	}
	b, err := h.Format(policy.SendProxy)
	if err != nil { // cannot be: both addresses are known, and Policy has no other version
		c.listener.proxy.cfg.Log.Error("cannot announce a client", "service", c.listener.name().String(), "error", err)
	}
	return b
}

// noHeader returns why the header was not there, in full.
func noHeader(err error) error { return fmt.Errorf("%w: %w", errHeader, err) }

// announce adds to a record what headers added to the connection.
func (a *announced) announce(r *Record) {
	if a == nil {
		return
	}
	if a.peer != r.Client {
		r.Peer = a.peer
	}
	r.UniqueID = a.id
	if strings.ContainsFunc(a.id, func(c rune) bool { return c < ' ' || c > '~' }) {
		r.UniqueID = hex.EncodeToString([]byte(a.id))
	}
}
