package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

func TestClientMayEndItsSendingAndStillGetTheAnswer(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	const size = 1 << 20
	c.backend("pod-a", func(conn *net.TCPConn) {
		if n, err := drainConn(conn); n != 1 || err != nil {
			t.Errorf("backend received %d bytes to the end (%v), want 1", n, err)
		}
		time.Sleep(time.Second) // a backend that has to think
		_, _ = conn.Write(make([]byte, size))
		_ = conn.Close()
	})
	c.publish(podA)
	p := c.start()

	conn := connect(t, c.client(), webAddress)
	_, err := conn.Write([]byte("x"))
	check(t, err)
	check(t, conn.CloseWrite())
	if n, err := drainConn(conn); n != size || err != nil {
		t.Errorf("client received %d bytes to the end (%v), want %d", n, err, size)
	}
	if r := p.finish(1)[0]; r.Close != "client-closed" || r.Up != 1 || r.Down != size {
		t.Errorf("logged %+v, want client-closed, 1 byte up, %d down", r, size)
	}
}

func TestBackendMayEndItsSendingAndStillReceive(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	const size = 1 << 20
	counted := make(chan int64, 1)
	c.backend("pod-a", func(conn *net.TCPConn) {
		_, _ = conn.Write(make([]byte, size))
		_ = conn.CloseWrite()
		n, _ := drainConn(conn)
		_ = conn.Close()
		counted <- n
	})
	c.publish(podA)
	p := c.start()

	conn := connect(t, c.client(), webAddress)
	if n, err := drainConn(conn); n != size || err != nil {
		t.Fatalf("client received %d bytes to the end (%v), want %d", n, err, size)
	}
	_, err := conn.Write(make([]byte, size))
	check(t, err)
	check(t, conn.Close())
	if n := <-counted; n != size {
		t.Errorf("backend received %d bytes, want %d", n, size)
	}
	if r := p.finish(1)[0]; r.Close != "backend-closed" || r.Up != size || r.Down != size {
		t.Errorf("logged %+v, want backend-closed, %d bytes each way", r, size)
	}
}

func TestHalfClosedConnectionsWhoseBackendNeverClosesAreEnded(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p, before := c.abandon(200)
	within(t, 2*time.Second, func() error {
		if now := p.opened()["socket"]; now > before["socket"] {
			return fmt.Errorf("%d sockets before, %d after", before["socket"], now)
		}
		return nil
	})
}

// The kernel's pipes of splice(2) are descriptors too.
func TestHalfClosedConnectionsLeaveNoDescriptors(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p, before := c.abandon(200)
	within(t, 10*time.Second, func() error {
		if now := p.opened(); now["all"] > before["all"] {
			return fmt.Errorf("descriptors before: %v, after: %v", before, now)
		}
		return nil
	})
}

// abandon starts the program and opens connections whose client closes after one
// byte and whose backend never does anything, until all have ended by the limit. It
// returns what was open before.
func (c *cluster) abandon(clients int) (*program, map[string]int) {
	t := c.t
	c.accepting("pod-a") // and leaving it at that
	c.publish(podA)
	p := c.start("--half-close-timeout", "1s")
	before := p.opened()
	for range clients {
		conn := connect(t, c.client(), webAddress)
		_, err := conn.Write([]byte("x"))
		check(t, err)
		check(t, conn.Close())
	}
	for _, r := range p.records(clients) {
		if r.Close != "half-closed" || r.Up != 1 || r.Duration < 1000 {
			t.Errorf("logged %+v, want half-closed after 1 s, 1 byte up", r)
		}
	}
	return p, before
}

// opened counts the program's descriptors by what they are, and all of them.
func (p *program) opened() map[string]int {
	count := map[string]int{}
	dir := fmt.Sprintf("/proc/%d/fd/", p.cmd.Process.Pid)
	entries, err := os.ReadDir(dir)
	check(p.t, err)
	for _, e := range entries {
		what, _ := os.Readlink(dir + e.Name()) // none: it was closed meanwhile
		what, _, _ = strings.Cut(what, ":")
		count[what]++
		count["all"]++
	}
	return count
}

func TestHalfClosedConnectionLivesWhileTheBackendSends(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	const bytes = 10
	c.backend("pod-a", func(conn *net.TCPConn) {
		_, _ = drainConn(conn)
		for range bytes {
			time.Sleep(400 * time.Millisecond)
			_, _ = conn.Write([]byte("x"))
		}
		_ = conn.Close()
	})
	c.publish(podA)
	p := c.start("--half-close-timeout", "1s")

	conn := connect(t, c.client(), webAddress)
	check(t, conn.CloseWrite())
	if n, err := drainConn(conn); n != bytes || err != nil {
		t.Errorf("client received %d bytes to the end (%v), want %d", n, err, bytes)
	}
	if r := p.finish(1)[0]; r.Close != "client-closed" {
		t.Errorf("logged %+v, want client-closed", r)
	}
}
