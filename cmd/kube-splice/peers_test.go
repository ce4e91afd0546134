package main

import (
	"errors"
	"io"
	"net"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

// webAddress is where clients find the Service web that publish makes.
const webAddress = "10.96.0.10:80"

// publish applies the Service web with endpoints at the addresses.
func (c *cluster) publish(endpoints ...string) {
	c.t.Helper()
	c.apply("slice", newSlice("web", endpoints))
	c.apply("web", newService("web", "10.96.0.10"))
}

// backend serves TCP connections on port 8080 of a pod until the test ends: each is
// given to handle in a goroutine of its own. Stopping it resets what is still open.
func (c *cluster) backend(pod string, handle func(*net.TCPConn)) (stop func()) {
	c.t.Helper()
	return serveOn(c.t, c.Pod(pod).Namespace, ":8080", handle)
}

// serveOn is backend on any address of any machine.
func serveOn(t testing.TB, machine *lab.Namespace, address string, handle func(*net.TCPConn)) (stop func()) {
	t.Helper()
	ln, err := machine.Listen("tcp", address)
	check(t, err)
	b := &backend{ln: ln, handle: handle}
	b.running.Go(b.accept)
	stop = sync.OnceFunc(b.stop)
	t.Cleanup(stop)
	return stop
}

type backend struct {
	ln      net.Listener
	handle  func(*net.TCPConn)
	running sync.WaitGroup

	mu    sync.Mutex
	conns []*net.TCPConn
}

func (b *backend) accept() {
	for {
		conn, err := b.ln.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		b.conns = append(b.conns, conn.(*net.TCPConn))
		b.mu.Unlock()
		b.running.Go(func() { b.handle(conn.(*net.TCPConn)) })
	}
}

func (b *backend) stop() {
	_ = b.ln.Close()
	b.mu.Lock()
	for _, conn := range b.conns {
		_ = conn.SetLinger(0)
		_ = conn.Close()
	}
	b.mu.Unlock()
	b.running.Wait()
}

// accepting is a backend whose connections the test takes itself.
func (c *cluster) accepting(pod string) <-chan *net.TCPConn {
	c.t.Helper()
	conns := make(chan *net.TCPConn, 1000)
	c.backend(pod, func(conn *net.TCPConn) { conns <- conn })
	return conns
}

// take waits for the next connection.
func take(t testing.TB, conns <-chan *net.TCPConn) *net.TCPConn {
	t.Helper()
	select {
	case conn := <-conns:
		check(t, conn.SetDeadline(time.Now().Add(patience)))
		return conn
	case <-time.After(patience):
		t.Fatal("the backend is not connected to")
		panic("unreachable")
	}
}

// echo sends back what it receives and closes when the client has.
func echo(conn *net.TCPConn) {
	_, _ = io.Copy(conn, struct{ io.Reader }{conn})
	_ = conn.Close()
}

// connect connects from a machine of the lab. The connection is closed when the
// test ends.
func connect(t testing.TB, from *lab.Namespace, address string) *net.TCPConn {
	t.Helper()
	conn, err := from.Dial("tcp", address, patience)
	check(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	check(t, conn.SetDeadline(time.Now().Add(2*patience)))
	return conn.(*net.TCPConn)
}

// client is the lab's pod that tests send requests from.
func (c *cluster) client() *lab.Namespace { return c.Pod("client").Namespace }

// exchange sends a text and demands it back.
func exchange(t testing.TB, conn net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(conn, text)
	check(t, err)
	answer := make([]byte, len(text))
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != text {
		t.Fatalf("sent %q, received %q (%v)", text, answer, err)
	}
}

// receive reads exactly n bytes.
func receive(t testing.TB, conn net.Conn, n int) {
	t.Helper()
	if got, err := io.ReadFull(conn, make([]byte, n)); err != nil {
		t.Fatalf("received %d of %d bytes: %v", got, n, err)
	}
}

// drainConn reads to the end and returns the number of bytes and the error.
func drainConn(conn net.Conn) (int64, error) {
	return io.Copy(io.Discard, struct{ io.Reader }{conn})
}

// wantReset demands that reading ends with a reset after n bytes.
func wantReset(t testing.TB, who string, conn net.Conn, n int64) {
	t.Helper()
	got, err := drainConn(conn)
	if got != n || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%s received %d bytes and %v, want %d and connection reset", who, got, err, n)
	}
}

// wantNoAnswer connects and demands a reset, which may come before connect(2) has
// returned.
func wantNoAnswer(t testing.TB, from *lab.Namespace, address string) {
	t.Helper()
	conn, err := from.Dial("tcp", address, patience)
	if err == nil {
		defer func() { _ = conn.Close() }()
		check(t, conn.SetDeadline(time.Now().Add(6*time.Second)))
		_, err = drainConn(conn)
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%s: %v, want connection reset", address, err)
	}
}

// abort closes with RST.
func abort(t testing.TB, conn *net.TCPConn) {
	t.Helper()
	check(t, conn.SetLinger(0))
	check(t, conn.Close())
}

// silence makes a pod drop every attempt to connect to it, as one does whose node
// has gone.
func (c *cluster) silence(pod string) {
	c.t.Helper()
	c.inPod(pod, "iptables", "-w", "-A", "INPUT", "-p", "tcp", "--syn", "-j", "DROP")
}

// speak undoes silence.
func (c *cluster) speak(pod string) {
	c.t.Helper()
	c.inPod(pod, "iptables", "-w", "-F", "INPUT")
}

// inPod runs a program in a pod.
func (c *cluster) inPod(pod string, command ...string) {
	c.t.Helper()
	_, err := c.Pod(pod).Output(exec.Command(command[0], command[1:]...))
	check(c.t, err)
}

// finish ends the program by SIGTERM, demands that it ends well, and returns the
// connection log, which must have n lines.
func (p *program) finish(n int) []record {
	p.t.Helper()
	if status := p.kill(syscall.SIGTERM); status != exitOK {
		p.t.Errorf("exit status %d, want %d", status, exitOK)
	}
	all := p.records(n)
	if len(all) != n {
		p.t.Errorf("%d connections are logged, want %d: %+v", len(all), n, all)
	}
	return all
}
