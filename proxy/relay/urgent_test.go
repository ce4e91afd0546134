package relay_test

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/proxy/relay"
)

// The kernel's splice(2) does not read past an urgent byte (tcp_read_sock), and says
// that there is nothing, or that the stream has ended.
func TestBytesAfterAnUrgentOneArrive(t *testing.T) {
	const size, rest = 4 << 20, 20_000
	onEveryEngine(t, relay.Limits{}, func(t *testing.T, p *pair) {
		go func() {
			send(t, p.client, size)
			urgent(t, p.client)
			send(t, p.client, rest)
			check(t, p.client.CloseWrite())
		}()
		if n, err := drain(t, p.backend); n != size+rest || err != nil {
			t.Errorf("the backend read %d bytes (%v), want %d", n, err, size+rest)
		}
		check(t, p.backend.Close())
		if r := p.end(t); r.Up != size+rest || r.Cause != relay.ClientClosed {
			t.Errorf("result %+v, want %d up and the client's end", r, size+rest)
		}
	})
}

// io.Copy splices from the first byte on, so the copier waits for the FIN, and for ever if
// there is more before that than buffers hold.
func TestBytesAfterAnUrgentOneNeedNoFIN(t *testing.T) {
	t.Parallel()
	p := newPair(t, "loop", relay.Limits{})
	for _, size := range []int{100, 4 << 20} {
		for range 3 {
			go send(t, p.client, size)
			receive(t, p.backend, size)
			urgent(t, p.client)
			waitSent(t, p.client)
			go send(t, p.client, size)
			receive(t, p.backend, size)
		}
	}
}

// urgent sends a byte out of band (MSG_OOB in send(2)), which a receiver that does not ask
// for it never sees.
func urgent(t testing.TB, c *net.TCPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	check(t, err)
	check(t, raw.Write(func(fd uintptr) bool {
		err = unix.Sendto(int(fd), []byte{1}, unix.MSG_OOB, nil)
		return err != unix.EAGAIN
	}))
	check(t, err)
}
