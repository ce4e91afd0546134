package main

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

func TestRemovedEndpointKeepsItsConnections(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.backend("pod-a", echo)
	fromB := c.accepting("pod-b")
	c.publish(podA)
	p := c.start()
	conn := connect(t, c.client(), webAddress)
	exchange(t, conn, "before")

	c.apply("slice", newSlice("web", []string{podB}))
	within(t, time.Second, func() error { return reaches(c, fromB) })
	exchange(t, conn, "replaced")
	c.apply("slice", newSlice("web", nil))
	within(t, time.Second, func() error { return refused(c.client(), webAddress) })
	exchange(t, conn, "none left")
	check(t, conn.CloseWrite())
	if n, err := drainConn(conn); n != 0 || err != nil {
		t.Errorf("the connection ended with %d bytes and %v, want a clean end", n, err)
	}
	wantLogged(t, p, conn, "client-closed")
}

// reaches tells whether a new connection comes to a backend.
func reaches(c *cluster, backend <-chan *net.TCPConn) error {
	conn, err := c.client().Dial("tcp", webAddress, time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	select {
	case <-backend:
		return nil
	case <-time.After(100 * time.Millisecond):
		return errors.New("the connection did not come to the new endpoint")
	}
}

// wantLogged waits for the record of a connection and demands how it ended.
func wantLogged(t testing.TB, p *program, conn net.Conn, how string) {
	t.Helper()
	eventually(t, func() error {
		for _, r := range p.records(1) {
			if r.Client == conn.LocalAddr().String() {
				if r.Close != how {
					t.Fatalf("logged %+v, want %s", r, how)
				}
				return nil
			}
		}
		return errors.New("the connection is not logged")
	})
}

func TestRemovedServiceIsClosedAtOnceAndItsConnectionsFinish(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.apply("other", newService("other", "10.96.0.20"))
	removeService(c)
}

// Without any rule that needs it, the kernel stops tracking connections, and those
// that are there would not be led any more.
func TestConnectionsOfTheLastServiceFinishToo(t *testing.T) {
	t.Parallel()
	removeService(newCluster(t))
}

func removeService(c *cluster) {
	t := c.t
	c.backend("pod-a", echo)
	c.apply("slice", newSlice("web", []string{podA}))
	c.apply("web", newService("web", "10.96.0.10", nodePort(30080)))
	p := c.start()
	byAddress := connect(t, c.client(), webAddress)
	exchange(t, byAddress, "before")
	byNodePort := connect(t, c.Outside, lab.NodeIP+":30080")
	exchange(t, byNodePort, "before")
	direct := fmt.Sprintf("%s:%d", lab.NodeIP, c.portOfListener("default/web:http"))

	c.remove("web")
	within(t, time.Second, func() error { return refused(c.Outside, direct) })
	within(t, time.Second, func() error {
		if port, err := c.findListener("default/web:http"); err == nil {
			return fmt.Errorf("a rule still leads to port %d", port)
		}
		return nil
	})
	wantRefused(t, c.Outside, lab.NodeIP+":30080")
	for _, conn := range []*net.TCPConn{byAddress, byNodePort} {
		check(t, conn.SetDeadline(time.Now().Add(3*time.Second)))
		exchange(t, conn, "after")
		check(t, conn.CloseWrite())
		if n, err := drainConn(conn); n != 0 || err != nil {
			t.Errorf("the connection ended with %d bytes and %v, want a clean end", n, err)
		}
		wantLogged(t, p, conn, "client-closed")
	}
}
