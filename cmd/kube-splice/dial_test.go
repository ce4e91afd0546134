package main

import (
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

// The times are not compared with a clock's, because on a busy machine everything
// is late: what counts is that nobody who was given pod-a came after somebody who
// was not.
func TestEndpointThatDoesNotAnswerDelaysOnlyTheClientsGivenToIt(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.backend("pod-a", echo)
	c.silence("pod-b")
	c.publish(podA, podB)
	p := c.start()

	const clients = 20
	answered := make(chan string, clients) // the clients' own addresses, in order
	var all sync.WaitGroup
	for range clients {
		conn := connect(t, c.client(), webAddress)
		all.Go(func() {
			_, _ = conn.Write([]byte("x"))
			if _, err := conn.Read(make([]byte, 1)); err != nil {
				t.Errorf("a client was not answered: %v", err)
			}
			answered <- conn.LocalAddr().String()
			_ = conn.Close()
		})
	}
	all.Wait()
	close(answered)
	attempts := map[string]int{}
	for _, r := range p.finish(clients) {
		attempts[r.Client] = r.Attempts
		if r.Backend != podA+":8080" || r.Close != "client-closed" {
			t.Errorf("logged %+v, want client-closed by pod-a", r)
		}
	}
	place := 0
	for client := range answered {
		if want := 1 + place/(clients/2); attempts[client] != want {
			t.Errorf("answer %d took %d dials, want %d", place+1, attempts[client], want)
		}
		place++
	}
}

func TestEndpointThatRefusesIsPassedOver(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	stop := c.serve("pod-b") // and nothing listens in pod-a
	c.publish(podA, podB)
	p := c.start()
	const clients = 100
	if got := answers(t, c.client(), webAddress, clients); got["pod-b"] != clients {
		t.Fatalf("answers %v, want %d of pod-b", got, clients)
	}

	stop()
	watch := lab.StartStopwatch()
	wantNoAnswer(t, c.client(), webAddress)
	if took := watch.Elapsed(); took > time.Second {
		t.Errorf("the client was reset only after %v", took)
	}
	dials, failed := 0, 0
	for _, r := range p.finish(clients + 1) {
		dials += r.Attempts
		if r.Close == "dial-failed" && r.Attempts == 2 && strings.Contains(r.Error, "connection refused") {
			failed++
		}
	}
	if dials < clients*5/4 {
		t.Errorf("%d connections took %d dials: pod-a was not tried", clients+1, dials)
	}
	if failed != 1 {
		t.Errorf("%d connections are logged as dial-failed after each endpoint refused once, want 1", failed)
	}
	if said := p.said.text(); !strings.Contains(said, `"without an answer"=1 `) {
		t.Errorf("the failed connection is not counted: %s", said)
	}
}

func TestDialsToSilentEndpointsEndWithinTheBudget(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.silence("pod-a")
	c.silence("pod-b")
	c.publish(podA, podB)
	const budget = 3 * time.Second
	p := c.start("--dial-timeout", budget.String())

	started, watch := time.Now(), lab.StartStopwatch()
	wantNoAnswer(t, c.client(), webAddress)
	if took := time.Since(started); took < budget || watch.Elapsed() > budget+time.Second {
		t.Errorf("the client was reset after %v, want %v", took, budget)
	}
	if r := p.finish(1)[0]; r.Close != "dial-failed" || r.Attempts < 2 || r.Dial < float64(budget.Milliseconds()) {
		t.Errorf("logged %+v, want dial-failed after the whole budget, both endpoints tried", r)
	}
}

func TestSilentEndpointThatAnswersLaterIsFoundWithinTheBudget(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.silence("pod-a")
	c.backend("pod-a", echo)
	c.publish(podA)
	p := c.start()

	const clients = 20
	var conns []*net.TCPConn
	for range clients {
		conns = append(conns, connect(t, c.client(), webAddress))
	}
	time.Sleep(500 * time.Millisecond) // past the first, short try
	c.speak("pod-a")
	for _, conn := range conns {
		exchange(t, conn, "ping")
		check(t, conn.Close())
	}
	for _, r := range p.finish(clients) {
		if r.Close != "client-closed" || r.Attempts < 2 {
			t.Errorf("logged %+v, want client-closed after several tries", r)
		}
	}
}

func TestBytesSentBeforeTheBackendIsFoundArriveOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.silence("pod-b")
	received := make(chan int64, 2)
	c.backend("pod-a", func(conn *net.TCPConn) {
		n, err := drainConn(conn)
		if err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("backend: %v", err)
		}
		received <- n
		_ = conn.Close()
	})
	c.publish(podA, podB)
	p := c.start()
	const size = 50_000
	for range 2 { // one of them at least is given to pod-b first
		conn := connect(t, c.client(), webAddress)
		_, err := conn.Write(make([]byte, size))
		check(t, err)
		check(t, conn.CloseWrite())
		if _, err := drainConn(conn); err != nil {
			t.Errorf("client: %v", err)
		}
		if n := <-received; n != size {
			t.Errorf("backend received %d bytes, want %d", n, size)
		}
	}
	if records := p.finish(2); records[0].Attempts+records[1].Attempts < 3 {
		t.Errorf("logged %+v, want a dial to pod-b too", records)
	}
}
