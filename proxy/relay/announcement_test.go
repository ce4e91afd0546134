package relay_test

import (
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/proxy/relay"
)

// segments returns how many segments with data have come.
func segments(t testing.TB, conn *net.TCPConn) int {
	t.Helper()
	raw, err := conn.SyscallConn()
	check(t, err)
	var info *unix.TCPInfo
	check(t, raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }))
	check(t, err)
	return int(info.Data_segs_in)
}

func TestAnnouncementComesInOneSegmentWithWhatTheClientHasSent(t *testing.T) {
	onEveryEngineAnnouncing(t, 0, "word\n", func(t *testing.T, a *announcing) {
		sent := make(chan struct{})
		a.prepared.Store(new(func(int) error {
			<-sent
			return nil
		}))
		client := a.client(t, "hi")
		awaitTaken(t, client)
		close(sent)
		s := a.session()
		backend := a.accept(t)
		wantBytes(t, backend, "word\nhi")
		if n := segments(t, backend); n != 1 {
			t.Errorf("%d segments brought announcement and data, want 1", n)
		}
		check(t, client.Close())
		check(t, backend.Close())
		if r := s.end(t); r.Up != 2 {
			t.Errorf("result %+v, want 2 bytes up", r)
		}
	})
}

func TestAnnouncementDoesNotWaitForTheClient(t *testing.T) {
	onEveryEngineAnnouncing(t, 0, "word\n", func(t *testing.T, a *announcing) {
		client, s := a.client(t), a.session()
		backend := a.accept(t)
		wantBytes(t, backend, "word\n")
		check(t, client.CloseWrite())
		if n, err := drain(t, backend); n != 0 || err != nil {
			t.Errorf("the backend read %d bytes more and %v", n, err)
		}
		check(t, backend.Close())
		if r := s.end(t); r != (relay.Result{Cause: relay.ClientClosed}) {
			t.Errorf("result %+v", r)
		}
	})
}

// cramped makes the sockets between engine and backend small, so that a long announcement
// does not fit into them.
func (a *announcing) cramped(t testing.TB) {
	t.Helper()
	a.prepared.Store(new(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1) }))
	check(t, control(a.backend, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1) }))
}

func TestAnnouncementComesWholeAndFirst(t *testing.T) {
	long := strings.Repeat("a long word ", 1000)
	onEveryEngineAnnouncing(t, 0, long, func(t *testing.T, a *announcing) {
		a.cramped(t)
		client, s := a.client(t, "hi"), a.session()
		backend := a.accept(t)
		wantBytes(t, backend, long+"hi")
		check(t, client.Close())
		check(t, backend.Close())
		if r := s.end(t); r.Up != 2 {
			t.Errorf("result %+v, want 2 bytes up", r)
		}
	})
}

func TestAnnouncementThatABackendDoesNotTakeCountsAsNothing(t *testing.T) {
	long := strings.Repeat("a long word ", 1000)
	onEveryEngineAnnouncing(t, 0, long, func(t *testing.T, a *announcing) {
		a.cramped(t)
		client, s := a.client(t, "hi"), a.session()
		backend := a.accept(t)
		wantBytes(t, backend, "a long")
		check(t, backend.SetLinger(0))
		check(t, backend.Close())
		wantReset(t, client)
		if r := s.end(t); r.Cause != relay.BackendReset || r.Up != 0 {
			t.Errorf("result %+v", r)
		}
	})
}

func control(c syscall.Conn, op func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var opErr error
	return errors.Join(raw.Control(func(fd uintptr) { opErr = op(int(fd)) }), opErr)
}
