package relay_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/proxy/relay"
)

// A reset makes the runtime refuse reads for microseconds, seldom to be met. A
// transmit timestamp (the kernel's Documentation/networking/timestamping.rst) waits as
// an error too, and does it for as long as the test likes.
func TestPairOutlivesAnErrorThatMakesTheRuntimeRefuseToRead(t *testing.T) {
	t.Parallel()
	for name := range engines {
		t.Run(name, func(t *testing.T) {
			insides := make(chan int, 1) // the engine's socket too
			p := newFront(t, name, relay.Limits{}, func(fd int) error {
				inside, err := unix.Dup(fd)
				if err != nil {
					return err
				}
				insides <- inside
				return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING,
					unix.SOF_TIMESTAMPING_TX_SOFTWARE|unix.SOF_TIMESTAMPING_SOFTWARE|unix.SOF_TIMESTAMPING_OPT_TSONLY)
			}).pair(t)
			inside := <-insides
			t.Cleanup(func() { _ = unix.Close(inside) })
			check(t, p.client.SetWriteDeadline(time.Now().Add(500*time.Millisecond)))
			flood(p.client) // now the engine's socket is full, so an error is all there is to poll
			for range 20 {
				receive(t, p.backend, 64<<10) // makes room in the network: more is sent, and stamped
				select {
				case r := <-p.result:
					t.Fatalf("the pair ended: %+v", r)
				case <-time.After(10 * time.Millisecond):
				}
			}
			if len(takeErrors(inside)) == 0 {
				t.Fatal("the engine's socket never had an error waiting")
			}
			send(t, p.backend, 10)
			waitSent(t, p.backend)
			abort(t, p.backend)
			if n, err := drain(t, p.client); n != 10 || !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("client read %d bytes and %v, want 10 and connection reset", n, err)
			}
			p.wantCause(t, relay.BackendReset)
		})
	}
}

// takeErrors empties the error queue of a socket.
func takeErrors(fd int) (stamps [][]byte) {
	for {
		control := make([]byte, 256)
		_, n, _, _, err := unix.Recvmsg(fd, nil, control, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if err != nil {
			return stamps // none is left
		}
		stamps = append(stamps, control[:n])
	}
}
