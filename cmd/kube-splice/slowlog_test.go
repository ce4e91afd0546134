package main

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/lab"
)

func TestConnectionLogThatNobodyReadsCostsRecordsAndNothingElse(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.publish(podA)
	fifo := filepath.Join(t.TempDir(), "log")
	check(t, unix.Mkfifo(fifo, 0o600))
	p := c.start("--connection-log-file", fifo)
	answers(t, c.client(), webAddress, 20)

	// Connections that are refused are the cheapest to fill the log with.
	address := fmt.Sprintf("%s:%d", lab.NodeIP, c.portOfListener("default/web:http"))
	const clients, each = 4, 2800 // more than the pipe and the queue hold
	var all sync.WaitGroup
	for range clients {
		all.Go(func() { knock(t, c.Outside, address, each) })
	}
	all.Wait()
	within(t, patience, func() error {
		if said := p.said.text(); !strings.Contains(said, "level=WARN") || !strings.Contains(said, "dropped") {
			return fmt.Errorf("nothing is said about dropped records: %s", said)
		}
		return nil
	})
	watch := lab.StartStopwatch()
	answers(t, c.client(), webAddress, 20)
	if took := watch.Elapsed(); took > 3*time.Second {
		t.Errorf("20 requests took %v", took)
	}
	watch = lab.StartStopwatch()
	if status := p.kill(syscall.SIGTERM); status != exitOK {
		t.Errorf("exit status %d, want %d", status, exitOK)
	}
	if took := watch.Elapsed(); took > 4*time.Second {
		t.Errorf("the program took %v to end", took)
	}
}

// knock connects and closes, n times.
func knock(t testing.TB, from *lab.Namespace, address string, n int) {
	err := from.Do(func() error {
		for range n {
			conn, err := net.Dial("tcp", address)
			if err == nil {
				_ = conn.Close() // else it was reset before connect returned
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
