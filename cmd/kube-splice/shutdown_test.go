package main

import (
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

// terminate sends SIGTERM and demands that new clients are refused at once.
func (p *program) terminate(c *cluster) {
	p.t.Helper()
	check(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	within(p.t, time.Second, func() error {
		if all := c.onNode("ss", "-Hlnt"); all != "" {
			return fmt.Errorf("listening: %s", all)
		}
		return nil
	})
	wantRefused(p.t, c.client(), webAddress)
}

// running demands that the program has not ended.
func (p *program) running() {
	p.t.Helper()
	select {
	case <-p.exited:
		p.t.Fatalf("the program has ended: %s", p.said.text())
	default:
	}
}

// heldConnection starts the program and opens a connection that is in use.
func heldConnection(t *testing.T, args ...string) (*cluster, *program, *net.TCPConn, *net.TCPConn) {
	c := newCluster(t)
	accepted := c.accepting("pod-a")
	c.publish(podA)
	p := c.start(args...)
	conn := connect(t, c.client(), webAddress)
	backend := take(t, accepted)
	_, err := conn.Write([]byte("before"))
	check(t, err)
	receive(t, backend, len("before"))
	return c, p, conn, backend
}

func TestTerminatedProgramLetsConnectionsFinish(t *testing.T) {
	t.Parallel()
	c, p, conn, backend := heldConnection(t)
	p.terminate(c)
	time.Sleep(time.Second)
	p.running()
	_, err := backend.Write([]byte("after"))
	check(t, err)
	receive(t, conn, len("after"))
	check(t, conn.CloseWrite())
	if _, err := drainConn(backend); err != nil {
		t.Errorf("backend: %v", err)
	}
	p.running()
	check(t, backend.Close())
	if n, err := drainConn(conn); n != 0 || err != nil {
		t.Errorf("the connection ended with %d bytes and %v, want a clean end", n, err)
	}
	select {
	case <-p.exited:
	case <-time.After(patience):
		t.Error("the program goes on though its last connection has ended")
	}
	if r := p.finish(1)[0]; r.Close != "client-closed" || r.Up != 6 || r.Down != 5 {
		t.Errorf("logged %+v, want client-closed, 6 bytes up, 5 down", r)
	}
}

func TestTerminatedProgramResetsConnectionsAfterTheDrainTimeout(t *testing.T) {
	t.Parallel()
	const drain = 1500 * time.Millisecond
	c, p, conn, backend := heldConnection(t, "--drain-timeout", drain.String())
	signalled, watch := time.Now(), lab.StartStopwatch()
	p.terminate(c)
	wantReset(t, "client", conn, 0)
	wantReset(t, "backend", backend, 0)
	if took := time.Since(signalled); took < drain || watch.Elapsed() > drain+time.Second {
		t.Errorf("the connection was reset after %v, want %v", took, drain)
	}
	if r := p.finish(1)[0]; r.Close != "shutdown" || r.Up != 6 || r.Down != 0 {
		t.Errorf("logged %+v, want shutdown, 6 bytes up", r)
	}
}

func TestSecondSignalEndsTheProgramAtOnce(t *testing.T) {
	t.Parallel()
	for _, second := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		c, p, conn, backend := heldConnection(t, "--drain-timeout", "10m")
		p.terminate(c)
		time.Sleep(200 * time.Millisecond)
		p.running()
		watch := lab.StartStopwatch()
		if status := p.kill(second); status != exitOK {
			t.Errorf("exit status %d, want %d", status, exitOK)
		}
		if took := watch.Elapsed(); took > 2*time.Second {
			t.Errorf("the program went on for %v", took)
		}
		wantReset(t, "client", conn, 0)
		wantReset(t, "backend", backend, 0)
		if r := p.finish(1)[0]; r.Close != "shutdown" {
			t.Errorf("logged %+v, want shutdown", r)
		}
	}
}

func TestTerminatedProgramWaitsNoLongerForDialsThanForConnections(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.silence("pod-a")
	c.publish(podA)
	p := c.start("--dial-timeout", "1m", "--drain-timeout", "500ms")
	conn := connect(t, c.client(), webAddress)
	p.terminate(c)
	wantReset(t, "client", conn, 0)
	if r := p.finish(1)[0]; r.Close != "shutdown" {
		t.Errorf("logged %+v, want shutdown", r)
	}
}

func TestIdleProgramEndsAtOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.publish(podA)
	p := c.start()
	answers(t, c.client(), webAddress, 5)
	rules := len(c.ourRules())
	watch := lab.StartStopwatch()
	p.finish(5)
	if took := watch.Elapsed(); took > 2*time.Second {
		t.Errorf("the program took %v to end", took)
	}
	if left := len(c.ourRules()); left != rules || rules == 0 {
		t.Errorf("%d of %d rules are left, want all, for the next start", left, rules)
	}
}
