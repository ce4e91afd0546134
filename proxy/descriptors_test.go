package proxy_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/proxy/relay"
	"github.com/kube-splice/kube-splice/service"
)

// A Copier has accepted a client before it knows whether there is room. With loops, clients
// wait in the kernel's queue.
func TestClientThatWaitsForRoomIsToldWhyItGetsNone(t *testing.T) {
	for _, c := range []struct {
		name string
		want proxy.Close
		end  func(*rig)
	}{
		{"the proxy stops", proxy.Shutdown, func(r *rig) { r.Shutdown(context.Background()) }},
		{"its Service is removed", proxy.NoEndpoints, func(r *rig) { r.Open(&service.Snapshot{}); r.Prune() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, _ := echo(t, "a", "10.88.0.11:0")
			undo := limitDescriptors(t, 200)
			r := newRig(t, func(c *proxy.Config) { c.Engine = relay.NewCopier() })
			undo() // the Proxy goes by the limit it began with
			at := r.open(newPort("web", a))[0]
			var clients []net.Conn
			for range 40 { // more than there is room for
				conn, err := net.Dial("tcp", at)
				check(t, err)
				defer func() { _ = conn.Close() }()
				clients = append(clients, conn)
			}
			for r.log.count("short of descriptors") == 0 { // one waits now
				time.Sleep(time.Millisecond)
			}
			ended := make(chan struct{})
			go func() { c.end(r); close(ended) }()
			if rec := r.record(); rec.Close != c.want || rec.Attempts != 0 {
				t.Errorf("recorded as %s after %d tries (%v), want %s", rec.Close, rec.Attempts, rec.Err, c.want)
			}
			for _, conn := range clients {
				_ = conn.Close()
			}
			<-ended
		})
	}
}

func TestClientsBeyondTheRoomAreServedWhenOthersLeave(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	undo := limitDescriptors(t, 200)
	r := newRig(t)
	undo() // the Proxy goes by the limit it began with
	at := r.open(newPort("web", a))[0]
	var clients []net.Conn
	for range 100 { // more than there is room for
		conn, err := net.Dial("tcp", at)
		check(t, err)
		clients = append(clients, conn)
	}
	for r.log.count("short of descriptors") == 0 {
		time.Sleep(time.Millisecond)
	}
	if c := r.Counts(); c.Active > 75 {
		t.Errorf("%d connections are served of 200 descriptors", c.Active)
	}
	last := clients[len(clients)-1]
	check(t, last.SetReadDeadline(time.Now().Add(time.Minute)))
	for _, conn := range clients[:len(clients)-1] {
		_ = conn.Close()
	}
	if _, err := last.Read(make([]byte, 1)); err != nil {
		t.Errorf("the last client is not served though all others have left: %v", err)
	}
	_ = last.Close()
}
