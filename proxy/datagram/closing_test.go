package datagram_test

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/kube-splice/kube-splice/proxy/datagram"
)

// A caller that is told that nothing was done, although it was, cleans up twice.
func TestCallIsDoneOrFailsWhenTheLoopCloses(t *testing.T) {
	for range 20 {
		loop, err := datagram.New(datagram.Config{})
		check(t, err)
		r := &rig{Loop: loop, t: t, owner: &owner{idle: patience, ended: make(chan end, 1)}}
		r.endpoints = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:9")}
		r.listener = r.listen(netip.MustParseAddr(anywhere))
		check(t, r.listener.Unpark())
		send(t, dial(t, r.at("127.0.0.1")), "x")
		eventually(t, "the flow is open", func() bool { return r.Counts().Opened == 1 })
		var calls sync.WaitGroup
		for range 200 {
			calls.Go(func() {
				done := false
				err := r.listener.Retain(func(netip.AddrPort) bool { done = true; return true })
				if done && err != nil {
					t.Errorf("it was done, and said: %v", err)
				}
			})
		}
		loop.Close()
		calls.Wait()
	}
}

func TestClosedListenerTouchesNoDescriptor(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{})
	check(t, r.listener.Close())
	var others []*net.UDPConn // one of which has the descriptor that the listener had
	for range 20 {
		others = append(others, socket(t, "127.0.0.1:0"))
	}
	if err := r.listener.Park(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed listener was parked: %v", err)
	}
	if err := r.listener.Unpark(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed listener was unparked: %v", err)
	}
	for _, other := range others {
		send(t, dial(t, other.LocalAddr().(*net.UDPAddr)), "x")
		want(t, other, "x")
	}
}
