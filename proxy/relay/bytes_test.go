package relay_test

import (
	"crypto/sha256"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/proxy/relay"
)

func unsent(fd uintptr) int {
	n, _ := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
	return n
}

func TestBytesPassUnchangedBothWaysAtOnce(t *testing.T) {
	const size = 48 << 20
	onEveryEngine(t, relay.Limits{}, func(t *testing.T, p *pair) {
		var wg sync.WaitGroup
		var sentUp, sentDown, gotUp, gotDown hash.Hash
		wg.Go(func() { sentUp = sendRandom(t, p.client, size, 1) })
		wg.Go(func() { sentDown = sendRandom(t, p.backend, size, 2) })
		wg.Go(func() { gotUp = hashAll(t, p.backend) })
		wg.Go(func() { gotDown = hashAll(t, p.client) })
		wg.Wait()
		if string(sentUp.Sum(nil)) != string(gotUp.Sum(nil)) || string(sentDown.Sum(nil)) != string(gotDown.Sum(nil)) {
			t.Error("what arrived is not what was sent")
		}
		if r := p.end(t); r.Up != size || r.Down != size {
			t.Errorf("counted %d up and %d down, want %d each", r.Up, r.Down, size)
		}
	})
}

func sendRandom(t testing.TB, c *net.TCPConn, size int64, seed byte) hash.Hash {
	h := sha256.New()
	random := rand.NewChaCha8([32]byte{seed})
	if _, err := io.Copy(io.MultiWriter(c, h), io.LimitReader(random, size)); err != nil {
		t.Errorf("send: %v", err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Errorf("half-close: %v", err)
	}
	return h
}

func hashAll(t testing.TB, c net.Conn) hash.Hash {
	h := sha256.New()
	if _, err := io.Copy(h, c); err != nil {
		t.Errorf("receive: %v", err)
	}
	return h
}

func TestSenderWaitsForASlowReader(t *testing.T) {
	onEveryEngine(t, relay.Limits{}, func(t *testing.T, p *pair) {
		check(t, p.backend.SetWriteDeadline(time.Now().Add(2*time.Second)))
		buf, taken := make([]byte, 256<<10), 0
		for {
			n, err := p.backend.Write(buf)
			taken += n
			if err != nil {
				break
			}
			if taken > 64<<20 {
				t.Fatal("64 MiB were taken from the backend though the client reads nothing")
			}
		}
		check(t, p.backend.Close())
		if n, err := drain(t, p.client); err != nil || n != int64(taken) {
			t.Errorf("client read %d bytes (%v) of the %d taken from the backend", n, err, taken)
		}
	})
}

func TestPairsLeaveNoDescriptorBehind(t *testing.T) {
	for name := range engines {
		t.Run(name, func(t *testing.T) {
			front := newFront(t, name, relay.Limits{}, nil)
			warm := front.pair(t) // the runtime's poller and pipe pool
			send(t, warm.client, 1)
			receive(t, warm.backend, 1)
			before := descriptors(t)
			for range 50 {
				p := front.pair(t)
				send(t, p.client, 1)
				receive(t, p.backend, 1)
				check(t, p.client.Close())
				check(t, p.backend.Close())
				p.end(t)
			}
			for range 500 {
				if descriptors(t) <= before {
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
			t.Errorf("%d descriptors before, %d after", before, descriptors(t))
		})
	}
}

// relayInChild makes the test binary relay 8 MiB under strace.
const relayInChild = "KUBE_SPLICE_TEST_RELAY"

func TestPayloadGoesThroughSplice(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed (make test installs it)")
	}
	for name := range engines {
		t.Run(name, func(t *testing.T) {
			trace := filepath.Join(t.TempDir(), "trace")
			cmd := exec.Command(strace, "-f", "-qq", "-e", "trace=splice", "-e", "signal=none", "-o", trace,
				os.Args[0], "-test.run=^TestRelayOneStream$", "-test.v")
			cmd.Env = append(os.Environ(), relayInChild+"="+name)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			text, err := os.ReadFile(trace)
			check(t, err)
			if spliced := bytesSpliced(string(text)); spliced < 2*7<<20 { // into the pipe and out of it
				t.Errorf("of 8 MiB, in and out, %d bytes were spliced", spliced)
			}
		})
	}
}

// bytesSpliced sums up what calls of splice(2) have moved, in strace's words.
func bytesSpliced(trace string) (sum int) {
	for _, line := range strings.Split(trace, "\n") {
		if i := strings.LastIndex(line, ") = "); i >= 0 {
			n, _ := strconv.Atoi(strings.Fields(line[i+4:])[0])
			sum += max(n, 0)
		}
	}
	return sum
}

// TestRelayOneStream does its work only as a child of TestPayloadGoesThroughSplice.
func TestRelayOneStream(t *testing.T) {
	engine := os.Getenv(relayInChild)
	if engine == "" {
		return
	}
	p := newPair(t, engine, relay.Limits{})
	go sendRandom(t, p.client, 8<<20, 3)
	hashAll(t, p.backend)
	check(t, p.backend.Close())
	p.wantCause(t, relay.ClientClosed)
}
