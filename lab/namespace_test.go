package lab_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

func newNamespace(t *testing.T, name string) *lab.Namespace {
	t.Helper()
	n, err := lab.NewNamespace(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// where returns the network namespace of the calling thread.
func where(t *testing.T) string {
	t.Helper()
	id, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// threadNamespaces lists the namespaces in which this process has threads.
func threadNamespaces(t *testing.T) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, link := range links {
		if id, err := os.Readlink(link); err == nil { // else the thread has ended
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func inside(t *testing.T, n *lab.Namespace) string {
	t.Helper()
	var id string
	if err := n.Do(func() error { id = where(t); return nil }); err != nil {
		t.Fatal(err)
	}
	return id
}

func TestDoRunsInsideAndNests(t *testing.T) {
	outer, inner := newNamespace(t, "outer"), newNamespace(t, "inner")
	idOuter, idInner := inside(t, outer), inside(t, inner)
	if home := where(t); idOuter == idInner || idOuter == home || idInner == home {
		t.Fatalf("outer %s, inner %s and home %s are not three", idOuter, idInner, home)
	}
	err := outer.Do(func() error {
		if got := inside(t, inner); got != idInner {
			t.Errorf("nested Do ran in %s, want %s", got, idInner)
		}
		if got := where(t); got != idOuter {
			t.Errorf("after a nested Do in %s, want %s", got, idOuter)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestConcurrentDoPutsEveryThreadBack(t *testing.T) {
	home := threadNamespaces(t)
	spaces := []*lab.Namespace{newNamespace(t, "a"), newNamespace(t, "b"), newNamespace(t, "c")}
	var doing sync.WaitGroup
	for _, n := range spaces {
		want := inside(t, n)
		for range 30 {
			doing.Go(func() {
				err := n.Do(func() error {
					runtime.Gosched()
					if got := where(t); got != want {
						t.Errorf("in %s, want %s", got, want)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	doing.Wait()
	if now := threadNamespaces(t); !slices.Equal(now, home) {
		t.Errorf("threads are in %v, want %v", now, home)
	}
}

func TestDoReturnsWhatItsFunctionReturns(t *testing.T) {
	n := newNamespace(t, "n")
	want := errors.New("as told")
	if err := n.Do(func() error { return want }); err != want {
		t.Errorf("got %v, want %v", err, want)
	}
}

func TestFunctionThatEndsItsGoroutineEndsTheCallers(t *testing.T) {
	home := threadNamespaces(t)
	n := newNamespace(t, "n")
	ended := make(chan bool)
	go func() {
		wentOn := false
		defer func() { ended <- wentOn }()
		_ = n.Do(func() error { runtime.Goexit(); return nil })
		wentOn = true
	}()
	if wentOn := <-ended; wentOn {
		t.Error("the caller went on")
	}
	if now := threadNamespaces(t); !slices.Equal(now, home) {
		t.Errorf("threads are in %v, want %v", now, home)
	}
}

func TestClosedNamespaceCannotBeEntered(t *testing.T) {
	n := newNamespace(t, "gone")
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	err := n.Do(func() error { t.Error("the function ran"); return nil })
	if err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("Do said %v", err)
	}
}

func TestSocketsBelongToTheirNamespace(t *testing.T) {
	here, there := newNamespace(t, "here"), newNamespace(t, "there")
	l, err := here.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := here.Dial("tcp", l.Addr().String(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if c, err := there.Dial("tcp", l.Addr().String(), time.Second); err == nil {
		c.Close()
		t.Error("another namespace reached the listener")
	}
	p, err := here.ListenPacket("udp", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	u, err := here.Dial("udp", p.LocalAddr().String(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if _, err := u.Write([]byte("datagram")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 16)
	if n, _, err := p.ReadFrom(got); err != nil || string(got[:n]) != "datagram" {
		t.Errorf("received %q, %v", got[:n], err)
	}
}

func TestDialTakesNoNames(t *testing.T) {
	n := newNamespace(t, "n")
	if c, err := n.Dial("tcp", "localhost:80", time.Second); err == nil || !strings.Contains(err.Error(), "ParseAddr") {
		t.Errorf("Dial gave %v, %v", c, err)
	}
}

func TestCommandsRunInside(t *testing.T) {
	n := newNamespace(t, "n")
	out, err := n.Output(exec.Command("readlink", "/proc/self/ns/net"))
	if got, want := strings.TrimSpace(string(out)), inside(t, n); err != nil || got != want {
		t.Errorf("ran in %s, %v; want %s", got, err, want)
	}
	cat := exec.Command("cat")
	cat.Stdin = strings.NewReader("through")
	if out, err := n.Output(cat); err != nil || string(out) != "through" {
		t.Errorf("cat gave %q, %v", out, err)
	}
	_, err = n.Output(exec.Command("sh", "-c", "echo reason >&2; exit 3"))
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 || !strings.Contains(err.Error(), "reason") {
		t.Errorf("a failed command gave %v", err)
	}
	if _, err := n.Output(exec.Command("/no/such/program")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing command gave %v", err)
	}
}

// The kernel sends the parent-death signal when the thread that started the
// command ends, so that thread has to go on.
func TestStartedCommandIsTheCallers(t *testing.T) {
	n := newNamespace(t, "n")
	cmd := exec.Command("cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(in, "ask"); err != nil {
		t.Error(err)
	}
	in.Close()
	if answer, err := io.ReadAll(out); err != nil || string(answer) != "ask" {
		t.Errorf("answer %q, %v", answer, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestRulesOfOneNamespaceAreNotInAnother(t *testing.T) {
	one, other := newNamespace(t, "one"), newNamespace(t, "other")
	if _, err := one.Output(exec.Command("iptables", "-t", "nat", "-N", "ONLY-HERE")); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[*lab.Namespace]bool{one: true, other: false} {
		rules, err := n.Output(exec.Command("iptables-save", "-t", "nat"))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(rules), "ONLY-HERE"); got != want {
			t.Errorf("chain in %s: %v, want %v", n.Name, got, want)
		}
	}
	if rules, err := exec.Command("iptables-save", "-t", "nat").Output(); err != nil || strings.Contains(string(rules), "ONLY-HERE") {
		t.Errorf("rules at home: %s, %v", rules, err)
	}
}

func BenchmarkDo(b *testing.B) {
	n, err := lab.NewNamespace("n")
	if err != nil {
		b.Fatal(err)
	}
	defer n.Close()
	for b.Loop() {
		if err := n.Do(func() error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
