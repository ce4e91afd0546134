package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/kube-splice/kube-splice/lab"
)

// withHeaders runs a test in clusters of their own, each with a program that demands a
// header of one version and sends another on.
func withHeaders(t *testing.T, test func(t *testing.T, c *cluster, header string)) {
	t.Parallel()
	for version := range byte(2) {
		header := headerOf(t, version+1, farClient, farServer, 0)
		t.Run(fmt.Sprintf("v%d", version+1), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			sends := annotations("send-proxy-protocol", fmt.Sprintf("v%d", 2-version))
			c.apply("web", newService("web", "10.96.0.10", wantsHeaders, sends), newSlice("web", []string{podA}))
			test(t, c, header)
		})
	}
}

// headed is a backend that takes the header off each connection, demands that it names
// farClient, and handles what comes after it.
func (c *cluster) headed(pod string, handle func(*net.TCPConn, io.Reader)) {
	c.t.Helper()
	c.backend(pod, func(conn *net.TCPConn) {
		rest := bufio.NewReader(struct{ io.Reader }{conn})
		h, err := proxyproto.Read(rest)
		if err != nil || h.SourceAddr.String() != farClient || h.DestinationAddr.String() != farServer {
			c.t.Errorf("the backend is sent the header %+v (%v), want %s and %s", h, err, farClient, farServer)
		}
		handle(conn, rest)
	})
}

// connectHeaded connects from outside and sends a header.
func connectHeaded(t testing.TB, c *cluster, header string) *net.TCPConn {
	t.Helper()
	conn := connect(t, c.Outside, webAddress)
	_, err := io.WriteString(conn, header)
	check(t, err)
	return conn
}

func TestHalfClosesAfterAHeaderArePassedOn(t *testing.T) {
	const size = 1 << 20
	withHeaders(t, func(t *testing.T, c *cluster, header string) {
		c.headed("pod-a", func(conn *net.TCPConn, rest io.Reader) {
			first := make([]byte, 1)
			_, _ = io.ReadFull(rest, first)
			if first[0] == 'x' { // the client ends first
				n, err := io.Copy(io.Discard, rest)
				if n != 0 || err != nil {
					t.Errorf("the backend received %d bytes more (%v)", n, err)
				}
				_, _ = conn.Write(make([]byte, size))
				_ = conn.Close()
				return
			}
			_, _ = conn.Write(make([]byte, size))
			_ = conn.CloseWrite()
			if n, err := io.Copy(io.Discard, rest); n != size || err != nil {
				t.Errorf("the backend received %d bytes (%v), want %d", n, err, size)
			}
			_ = conn.Close()
		})
		p := c.start(trustOutside)
		conn := connectHeaded(t, c, header+"x")
		check(t, conn.CloseWrite())
		if n, err := drainConn(conn); n != size || err != nil {
			t.Errorf("the client received %d bytes to the end (%v), want %d", n, err, size)
		}
		if r := p.records(1)[0]; r.Close != "client-closed" || r.Up != 1 || r.Down != size {
			t.Errorf("logged %+v", r)
		}
		conn = connectHeaded(t, c, header+"y")
		if n, err := drainConn(conn); n != size || err != nil {
			t.Errorf("the client received %d bytes to the end (%v), want %d", n, err, size)
		}
		_, err := conn.Write(make([]byte, size))
		check(t, err)
		check(t, conn.Close())
		if r := p.finish(2)[1]; r.Close != "backend-closed" || r.Up != size+1 || r.Down != size {
			t.Errorf("logged %+v", r)
		}
	})
}

func TestResetsAfterAHeaderStayResets(t *testing.T) {
	const part = 10_000
	withHeaders(t, func(t *testing.T, c *cluster, header string) {
		ended := make(chan error, 1)
		c.headed("pod-a", func(conn *net.TCPConn, rest io.Reader) {
			request := make([]byte, 4)
			_, _ = io.ReadFull(rest, request)
			if string(request) == "wait" {
				_, err := io.Copy(io.Discard, rest)
				ended <- err
				return
			}
			_, _ = conn.Write(make([]byte, part))
			_, _ = io.ReadFull(rest, request) // the client has it
			_ = conn.SetLinger(0)
			_ = conn.Close()
		})
		p := c.start(trustOutside)
		conn := connectHeaded(t, c, header+"get\n")
		receive(t, conn, part)
		_, err := io.WriteString(conn, "got\n")
		check(t, err)
		wantReset(t, "client", conn, 0)
		if r := p.records(1)[0]; r.Close != "backend-reset" || r.Up != 8 || r.Down != part {
			t.Errorf("logged %+v", r)
		}
		conn = connectHeaded(t, c, header+"wait")
		awaitArrival(t, conn)
		abort(t, conn)
		select {
		case err := <-ended:
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the backend received %v, want connection reset", err)
			}
		case <-time.After(patience):
			t.Error("the backend does not hear that the client is gone")
		}
		if r := p.finish(2)[1]; r.Close != "client-reset" {
			t.Errorf("logged %+v", r)
		}
	})
}

func TestHalfClosedConnectionsAfterAHeaderAreEnded(t *testing.T) {
	const clients = 50
	withHeaders(t, func(t *testing.T, c *cluster, header string) {
		c.accepting("pod-a") // and leaving it at that
		p := c.start(trustOutside, "--half-close-timeout", "1s")
		before := p.opened()["socket"]
		for range clients {
			check(t, connectHeaded(t, c, header+"x").Close())
		}
		for _, r := range p.records(clients) {
			if r.Close != "half-closed" || r.Up != 1 || r.Client != farClient {
				t.Errorf("logged %+v, want half-closed, 1 byte up", r)
			}
		}
		within(t, 2*time.Second, func() error {
			if now := p.opened()["socket"]; now > before {
				return fmt.Errorf("%d sockets before, %d after", before, now)
			}
			return nil
		})
	})
}

// Peers that open connections and send no header, or hardly any.
func TestPeersThatOweTheirHeaderLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	const silent, slow = 500, 50
	accepted := c.accepting("pod-a")
	c.apply("web", newService("web", "10.96.0.10", wantsHeaders), newSlice("web", []string{podA}))
	p := c.start(trustOutside)
	before := p.opened()["all"]
	for range silent {
		connect(t, c.Outside, webAddress)
	}
	var dripping sync.WaitGroup
	for range slow {
		conn := connect(t, c.Outside, webAddress)
		dripping.Go(func() { drip(conn, headerOf(t, 1, farClient, farServer, 0)) })
	}
	// Who is served meanwhile does not notice.
	watch := lab.StartStopwatch()
	conn := connectHeaded(t, c, headerOf(t, 2, farClient, farServer, 0))
	backend := take(t, accepted)
	if took := watch.Elapsed(); took > time.Second {
		t.Errorf("a peer with a header was served only after %v", took)
	}
	check(t, conn.Close())
	check(t, backend.Close())

	all := p.records(silent + slow + 1)
	if n := countClosed(all, "bad-header"); n != silent+slow {
		t.Errorf("%d connections are logged as without a header, want %d", n, silent+slow)
	}
	for _, r := range all {
		if r.Close == "bad-header" && r.Duration < 2900 {
			t.Errorf("logged %+v, want that the peer was given 3 s", r)
		}
	}
	dripping.Wait()
	within(t, 2*time.Second, func() error {
		if now := p.opened(); now["all"] > before {
			return fmt.Errorf("%d descriptors before, now %v", before, now)
		}
		return nil
	})
	awaitSeries(t, c, "kubesplice_connections_active 0")
}

// drip sends a text by a byte a second, until it is complete or the connection ends.
func drip(conn net.Conn, text string) {
	for _, b := range []byte(text) {
		if _, err := conn.Write([]byte{b}); err != nil {
			return
		}
		time.Sleep(time.Second)
	}
}
