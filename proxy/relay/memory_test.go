package relay_test

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/lab"
	"github.com/kube-splice/kube-splice/proxy/relay"
)

// None of the clients reads, and the backends offer as much as is taken: nothing but
// buffers bounds it.
func TestReadersThatHangCostBoundedMemoryAndNobodyElse(t *testing.T) {
	const hanging = 100
	for name, bound := range map[string]int{
		"loop": 20 << 20,
		"copy": 120 << 20, // the runtime's pipes hold 1 MiB
	} {
		t.Run(name, func(t *testing.T) {
			front := newFront(t, name, relay.Limits{}, nil)
			other := front.pair(t)
			exchange(t, other, 10)
			var backends []*net.TCPConn
			for range hanging {
				backends = append(backends, front.pair(t).backend)
			}
			before := held(t)
			var taken atomic.Int64
			var offering sync.WaitGroup
			for _, b := range backends {
				offering.Go(func() { offer(b, &taken) })
			}
			for last := int64(-1); taken.Load() != last; {
				last = taken.Load()
				watch := lab.StartStopwatch()
				exchange(t, other, 100)
				if took := watch.Elapsed(); took > time.Second {
					t.Errorf("100 exchanges beside %d readers that hang took %v", hanging, took)
				}
				time.Sleep(500 * time.Millisecond)
			}
			grown := held(t) - before
			t.Logf("%d MiB offered to %d readers that hang; the engine holds %d KiB", taken.Load()>>20, hanging, grown>>10)
			if taken.Load() < hanging<<20 {
				t.Errorf("only %d bytes were taken from the backends", taken.Load())
			}
			if grown > bound {
				t.Errorf("the engine holds %d bytes, want less than %d", grown, bound)
			}
			front.engine.Abort()
			offering.Wait()
		})
	}
}

// offered is what offer writes again and again.
var offered [32 << 10]byte

// offer writes until the connection ends.
func offer(c net.Conn, taken *atomic.Int64) {
	for {
		n, err := c.Write(offered[:])
		taken.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// exchange makes n requests of a byte, and answers.
func exchange(t testing.TB, p *pair, n int) {
	t.Helper()
	for range n {
		send(t, p.client, 1)
		receive(t, p.backend, 1)
		send(t, p.backend, 1)
		receive(t, p.client, 1)
	}
}

// held returns how much memory this process and its pipes hold, in bytes: what the garbage
// collector leaves of the heap and stacks, and what waits in pipes. The kernel's socket
// buffers are those of the system, whatever relays.
func held(t testing.TB) (sum int) {
	t.Helper()
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	for _, fd := range pipes(t) {
		n, err := unix.IoctlGetInt(fd, unix.TIOCINQ) // FIONREAD
		if err == nil {
			sum += n
		}
	}
	return sum + int(m.HeapInuse+m.StackInuse)
}

// pipes returns one of this process's descriptors of each pipe, by the pipe's name.
func pipes(t testing.TB) map[string]int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	check(t, err)
	all := map[string]int{}
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err == nil && strings.HasPrefix(to, "pipe:") {
			all[to], err = strconv.Atoi(e.Name())
			check(t, err)
		}
	}
	return all
}

// newPipes counts the pipes that were not there before. Those that were may go meanwhile:
// what earlier tests' copiers have left is collected some time.
func newPipes(t testing.TB, before map[string]int) (n int) {
	t.Helper()
	for name := range pipes(t) {
		if _, old := before[name]; !old {
			n++
		}
	}
	return n
}

func TestAConnectionAtRestHoldsTwoDescriptors(t *testing.T) {
	const connections, size = 20, 4 << 20
	front := newFront(t, "loop", relay.Limits{}, nil)
	exchange(t, front.pair(t), 1)
	pipesBefore, before := pipes(t), descriptors(t)
	for range connections {
		p := front.pair(t)
		go func() { _, _ = p.client.Write(make([]byte, size)) }()
		receive(t, p.backend, size)
		go func() { _, _ = p.backend.Write(make([]byte, size)) }()
		receive(t, p.client, size)
	}
	hangs := front.pair(t)
	go flood(hangs.client)
	within(t, 10*time.Second, "bulk data that waits has a pipe", func() bool {
		receive(t, hangs.backend, 1<<20) // more than once: what comes slowly is no bulk data
		return newPipes(t, pipesBefore) > 0
	})
	check(t, hangs.client.SetWriteDeadline(time.Now()))
	abort(t, hangs.client)
	check(t, hangs.backend.Close())
	within(t, 10*time.Second, "pipes are closed", func() bool { return newPipes(t, pipesBefore) == 0 })
	if each := float64(descriptors(t)-before) / connections; each > 2+2 { // the peers' own ends are here too
		t.Errorf("a connection at rest holds %.1f descriptors, want 2", each-2)
	}
}
