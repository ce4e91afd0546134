package relay_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/proxy/relay"
)

// engineInChild makes the test binary run an engine before engineBackend.
const engineInChild, engineBackend = "KUBE_SPLICE_TEST_ENGINE", "KUBE_SPLICE_TEST_BACKEND"

// child is an engine in a process of its own, whose limits can be set.
type child struct {
	pid     int
	address string
	said    *bufio.Scanner
}

func startChild(t *testing.T, engine string, backend net.Addr) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestServeAsAChild$", "-test.v")
	cmd.Env = append(os.Environ(), engineInChild+"="+engine, engineBackend+"="+backend.String())
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	check(t, err)
	stdout, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_, _ = io.Copy(io.Discard, stdout)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the engine's process: %v", err)
		}
	})
	c := &child{pid: cmd.Process.Pid, said: bufio.NewScanner(stdout)}
	c.address = c.hear(t, "serves ")
	return c
}

// hear waits for a line that begins with prefix, and returns the rest.
func (c *child) hear(t testing.TB, prefix string) string {
	t.Helper()
	for c.said.Scan() {
		if rest, is := strings.CutPrefix(c.said.Text(), prefix); is {
			return rest
		}
	}
	t.Fatalf("the engine's process ended without a word of %q", prefix)
	panic("unreachable")
}

// allow lets the child open n more descriptors, those below the limit that are free, and
// returns the limit.
func (c *child) allow(t testing.TB, n int) (below int) {
	t.Helper()
	open := c.descriptors(t)
	for free := 0; slices.Contains(open, below) || free < n; below++ {
		if !slices.Contains(open, below) {
			free++
		}
	}
	limit := unix.Rlimit{Cur: uint64(below), Max: uint64(below)}
	check(t, unix.Prlimit(c.pid, unix.RLIMIT_NOFILE, &limit, nil))
	return below
}

func (c *child) descriptors(t testing.TB) (fds []int) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(c.pid), "fd"))
	check(t, err)
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		check(t, err)
		fds = append(fds, fd)
	}
	return fds
}

// TestServeAsAChild does its work only as a child: it serves until its input ends.
func TestServeAsAChild(t *testing.T) {
	engine := os.Getenv(engineInChild)
	if engine == "" {
		return
	}
	backend, err := netip.ParseAddrPort(os.Getenv(engineBackend))
	check(t, err)
	e, h := engines[engine](), newPlanned(func(_ int, failed error) (relay.Dial, error) {
		if failed != nil {
			return relay.Dial{Wait: 20 * time.Millisecond}, nil
		}
		return relay.Dial{Backend: backend, Limit: 10 * time.Second}, nil
	})
	address, l := h.serve(t, e)
	fmt.Printf("serves %s\n", address)
	go func() {
		for err := range h.short {
			fmt.Printf("short of %v\n", err)
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	l.Close()
	e.Close()
	close(h.short)
}

// The clients wait in the kernel's queue, and are served when others have gone.
func TestOutOfDescriptorsClientsWaitAndAreServedLater(t *testing.T) {
	t.Parallel()
	backend := listen(t)
	defer backend.Close()
	go serveEcho(backend)
	c := startChild(t, "loop", backend.Addr())
	c.allow(t, 21)
	const clients = 60
	left := make(chan net.Conn, clients)
	for range clients {
		client, err := net.Dial("tcp", c.address)
		check(t, err)
		defer client.Close()
		send(t, client, 1)
		left <- client
	}
	if why := c.hear(t, "short of "); !strings.Contains(why, "too many open files") {
		t.Errorf("short of %q", why)
	}
	served := 0
	for deadline := time.Now().Add(30 * time.Second); served < clients && time.Now().Before(deadline); {
		client := <-left
		check(t, client.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		if _, err := client.Read(make([]byte, 1)); err != nil {
			left <- client
			continue
		}
		served++
		check(t, client.Close())
	}
	if served < clients {
		t.Errorf("%d clients of %d were served", served, clients)
	}
}

func TestWithoutPipesBulkDataIsCopied(t *testing.T) {
	t.Parallel()
	const size = 16 << 20
	backend := listen(t)
	defer backend.Close()
	c := startChild(t, "loop", backend.Addr())
	client, err := net.Dial("tcp", c.address)
	check(t, err)
	defer client.Close()
	accepted, err := backend.AcceptTCP()
	check(t, err)
	defer accepted.Close()
	send(t, client, 1)
	receive(t, accepted, 1)
	before := len(c.descriptors(t))
	c.allow(t, 0)
	sent := make(chan string, 1)
	go func() { sent <- string(sendRandom(t, client.(*net.TCPConn), size, 5).Sum(nil)) }()
	if got := string(hashAll(t, accepted).Sum(nil)); got != <-sent {
		t.Error("what arrived is not what was sent")
	}
	if now := len(c.descriptors(t)); now > before {
		t.Errorf("%d descriptors before, %d after bulk data: the limit did not hold", before, now)
	}
}

// Pipes leave others what they cannot do without: a quarter of the descriptors.
func TestPipesDoNotTakeTheLastDescriptors(t *testing.T) {
	t.Parallel()
	const pairs, allowed = 24, 80 // two sockets a pair, and two ends of a pipe
	backend := listen(t)
	defer backend.Close()
	c := startChild(t, "loop", backend.Addr())
	limit := c.allow(t, allowed)
	var clients, backends []net.Conn
	for range pairs {
		client, err := net.Dial("tcp", c.address)
		check(t, err)
		defer client.Close()
		accepted, err := backend.AcceptTCP()
		check(t, err)
		defer accepted.Close()
		clients, backends = append(clients, client), append(backends, accepted)
	}
	for i, client := range clients {
		go func() { _, _ = client.Write(make([]byte, 64<<20)) }() // more than buffers take
		receive(t, backends[i], 4<<20)
	}
	if open := len(c.descriptors(t)); open <= limit-allowed+2*pairs {
		t.Errorf("%d descriptors are open: there is no pipe", open)
	}
	within(t, 10*time.Second, "a quarter of the descriptors is left", func() bool { // a pipe may just be tried
		return limit-len(c.descriptors(t)) >= limit/4
	})
}
