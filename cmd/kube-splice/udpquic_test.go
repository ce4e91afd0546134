package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/kube-splice/kube-splice/lab"
)

// What both ends of the QUIC tests agree on. Neither sends keepalives, so a pause is a
// pause.
var (
	quicConfig   = &quic.Config{MaxIdleTimeout: 2 * time.Minute, HandshakeIdleTimeout: patience}
	quicProtocol = []string{"echo"}
)

// serveQUIC runs a server on a port that sends back what it receives on each stream,
// until the test ends.
func serveQUIC(t *testing.T, in *lab.Namespace, address string) {
	t.Helper()
	conn, err := in.ListenPacket("udp", address)
	check(t, err)
	transport := &quic.Transport{Conn: conn}
	listener, err := transport.Listen(&tls.Config{Certificates: []tls.Certificate{newCertificate(t)}, NextProtos: quicProtocol}, quicConfig)
	check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			peer, err := listener.Accept(ctx)
			if err != nil {
				return
			}
			go echoStreams(ctx, peer)
		}
	}()
	t.Cleanup(func() {
		cancel()
		_ = transport.Close()
		_ = conn.Close()
		<-ended
	})
}

func echoStreams(ctx context.Context, peer *quic.Conn) {
	for {
		stream, err := peer.AcceptStream(ctx)
		if err != nil {
			return
		}
		_, _ = io.Copy(stream, stream)
		_ = stream.Close()
	}
}

func newCertificate(t testing.TB) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"pod"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	check(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// dialQUIC connects from a machine of the lab. The connection is closed when the test
// ends.
func dialQUIC(ctx context.Context, t *testing.T, from *lab.Namespace, address string) *quic.Conn {
	t.Helper()
	conn, err := from.ListenPacket("udp", ":0")
	check(t, err)
	transport := &quic.Transport{Conn: conn}
	t.Cleanup(func() {
		_ = transport.Close()
		_ = conn.Close()
	})
	to, err := net.ResolveUDPAddr("udp", address)
	check(t, err)
	config := &tls.Config{InsecureSkipVerify: true, NextProtos: quicProtocol}
	peer, err := transport.Dial(ctx, to, config, quicConfig)
	check(t, err)
	return peer
}

// exchangeQUIC sends so many bytes on a stream of their own, while it receives them
// back, and demands that they are the same.
func exchangeQUIC(ctx context.Context, t *testing.T, peer *quic.Conn, size int64) {
	t.Helper()
	stream, err := peer.OpenStreamSync(ctx)
	check(t, err)
	up, down := sha256.New(), sha256.New()
	failed := make(chan error, 1)
	go func() {
		_, err := io.Copy(stream, io.TeeReader(io.LimitReader(rand.Reader, size), up))
		if err == nil {
			err = stream.Close()
		}
		failed <- err
	}()
	n, err := io.Copy(down, stream)
	check(t, err)
	check(t, <-failed)
	if n != size || !bytes.Equal(up.Sum(nil), down.Sum(nil)) {
		t.Errorf("of %d bytes %d came back, or others", size, n)
	}
}

func TestQUICTransfersBothWaysAndSurvivesAPause(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]struct {
		address string
		from    func(*cluster) *lab.Namespace
	}{
		"IPv4": {udpAddress, (*cluster).client},
		"IPv6": {"[fd00:172:20:1::2]:30053", func(c *cluster) *lab.Namespace { return c.Outside }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			serveQUIC(t, c.Pod("pod-a").Namespace, ":8080")
			c.apply("dns", newService("dns", "10.96.0.53", udp, nodePort(30053), withIPv6("fd00:10:96::53")),
				newUDPSlice("dns", []string{podA}), newUDPSlice("dns", []string{podA6}, ipv6))
			p := c.start()
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			peer := dialQUIC(ctx, t, f.from(c), f.address)
			exchangeQUIC(ctx, t, peer, 16<<20)
			time.Sleep(20 * time.Second)
			exchangeQUIC(ctx, t, peer, 1000)
			// QUIC would survive a new flow too, by moving its connection there.
			if r := p.finish(1)[0]; r.Close != "shutdown" || r.Original != f.address || min(r.Up, r.Down) < 16<<20 {
				t.Errorf("logged %+v, want one flow with all bytes", r)
			}
		})
	}
}
