package relay_test

import (
	"errors"
	"net"
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
	for name, engine := range engines {
		t.Run(name, func(t *testing.T) {
			p, inside := newPairWithBackend(t, engine, relay.Limits{})
			onDescriptor(t, inside, func(fd int) error {
				return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING,
					unix.SOF_TIMESTAMPING_TX_SOFTWARE|unix.SOF_TIMESTAMPING_SOFTWARE|unix.SOF_TIMESTAMPING_OPT_TSONLY)
			})
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
			if len(takeErrors(t, inside)) == 0 {
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

// takeErrors empties the error queue of c's socket.
func takeErrors(t testing.TB, c *net.TCPConn) (stamps [][]byte) {
	t.Helper()
	onDescriptor(t, c, func(fd int) error {
		for {
			control := make([]byte, 256)
			_, n, _, _, err := unix.Recvmsg(fd, nil, control, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
			if err != nil {
				return nil // none is left
			}
			stamps = append(stamps, control[:n])
		}
	})
	return stamps
}

func onDescriptor(t testing.TB, c *net.TCPConn, call func(fd int) error) {
	t.Helper()
	raw, err := c.SyscallConn()
	check(t, err)
	var callErr error
	check(t, raw.Control(func(fd uintptr) { callErr = call(int(fd)) }))
	check(t, callErr)
}
