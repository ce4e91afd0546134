package main

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

func TestBackendThatResetsInMidAnswerResetsTheClient(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	const part = 10_000 // of 1 MB that the backend announced
	aborting := make(chan struct{})
	c.backend("pod-a", func(conn *net.TCPConn) {
		_, _ = io.ReadFull(conn, make([]byte, 4))
		_, _ = conn.Write(make([]byte, part))
		<-aborting
		_ = conn.SetLinger(0)
		_ = conn.Close()
	})
	c.publish(podA)
	p := c.start()

	conn := connect(t, c.client(), webAddress)
	_, err := conn.Write([]byte("get\n"))
	check(t, err)
	receive(t, conn, part)
	watch := lab.StartStopwatch()
	close(aborting)
	wantReset(t, "client", conn, 0)
	if took := watch.Elapsed(); took > time.Second {
		t.Errorf("the reset took %v", took)
	}
	if r := p.finish(1)[0]; r.Close != "backend-reset" || r.Up != 4 || r.Down != part || r.Error == "" {
		t.Errorf("logged %+v, want backend-reset with its error, 4 bytes up, %d down", r, part)
	}
}

func TestClientThatGivesUpResetsTheBackend(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	accepted := c.accepting("pod-a")
	c.publish(podA)
	p := c.start()

	conn := connect(t, c.client(), webAddress)
	_, err := conn.Write([]byte("get\n"))
	check(t, err)
	backend := take(t, accepted)
	receive(t, backend, 4)
	abort(t, conn)
	watch := lab.StartStopwatch()
	check(t, backend.SetReadDeadline(time.Now().Add(patience)))
	if _, err := drainConn(backend); !errors.Is(err, syscall.ECONNRESET) || watch.Elapsed() > time.Second {
		t.Errorf("backend received %v after %v, want connection reset within 1 s", err, watch.Elapsed())
	}
	if r := p.finish(1)[0]; r.Close != "client-reset" || r.Up != 4 || r.Down != 0 || r.Error == "" {
		t.Errorf("logged %+v, want client-reset with its error, 4 bytes up", r)
	}
}
