package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/kube-splice/kube-splice/lab"
)

// asProgram makes the test binary be kube-splice itself, so that the tests drive
// the whole program, race detector included.
const asProgram = "KUBE_SPLICE_TEST_AS_PROGRAM"

// noAmbient makes it a program that may not raise ambient capabilities.
const noAmbient = "KUBE_SPLICE_TEST_NO_AMBIENT"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		if os.Getenv(noAmbient) != "" {
			_ = cap.SecbitNoCapAmbientRaise.Set() // the test sees whether
		}
		main()
	}
	// Programs built with the race detector wait for a second when they end.
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
	if err := lab.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, "the tests need network namespaces:", err)
		os.Exit(1)
	}
	_ = os.Setenv(lab.UntilEnv, strconv.Itoa(os.Getpid()))
	goleak.VerifyTestMain(m)
}

// patience bounds every wait for something that must happen.
const patience = 15 * time.Second

// cluster is a lab with a folder of manifests, or with a kubeconfig instead.
type cluster struct {
	*lab.Lab
	t          testing.TB
	manifests  string
	kubeconfig string
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	l, err := lab.New(lab.Config{OneNode: true})
	check(t, err)
	t.Cleanup(func() { check(t, l.Close()) })
	return &cluster{Lab: l, t: t, manifests: t.TempDir()}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// apply writes objects as one manifest, in one step, in place of what that
// manifest held before.
func (c *cluster) apply(manifest string, objects ...any) {
	c.t.Helper()
	path := c.manifestPath(manifest)
	check(c.t, os.WriteFile(path+".new", []byte(asText(c.t, objects...)), 0o644))
	check(c.t, os.Rename(path+".new", path))
}

// asText returns objects as the text of a manifest.
func asText(t testing.TB, objects ...any) string {
	t.Helper()
	var text strings.Builder
	for _, object := range objects {
		document, err := json.Marshal(object)
		check(t, err)
		text.Write(append(document, "\n---\n"...))
	}
	return text.String()
}

// remove removes a manifest with all its objects.
func (c *cluster) remove(manifest string) {
	c.t.Helper()
	check(c.t, os.Remove(c.manifestPath(manifest)))
}

func (c *cluster) manifestPath(manifest string) string {
	return filepath.Join(c.manifests, manifest+".yaml")
}

// program is a running kube-splice.
type program struct {
	t      testing.TB
	cmd    *exec.Cmd
	said   watchedOutput
	log    string // the connection log's file
	exited chan struct{}
}

// start runs kube-splice on the lab's node until the test ends, and waits until it
// is ready.
func (c *cluster) start(args ...string) *program {
	c.t.Helper()
	p := c.launch("", args...)
	p.waitReady()
	return p
}

// launch is start without waiting. The program is run by a shell that runs setup
// first, such as "ulimit -n 256".
func (c *cluster) launch(setup string, args ...string) *program {
	c.t.Helper()
	p := c.prepare(setup, args...)
	c.run(p)
	return p
}

// prepare is launch without starting the program.
func (c *cluster) prepare(setup string, args ...string) *program {
	c.t.Helper()
	p := &program{
		t: c.t, log: filepath.Join(c.t.TempDir(), "connections.log"), exited: make(chan struct{}),
		said: watchedOutput{word: "msg=ready", found: make(chan struct{})},
	}
	source := []string{"--manifests", c.manifests}
	if c.kubeconfig != "" {
		source = []string{"--kubeconfig", c.kubeconfig}
	}
	all := slices.Concat(source, []string{
		"--hostname-override", "node", "--connection-log", "json", "--connection-log-file", p.log,
		"--relay", cmp.Or(os.Getenv("KUBE_SPLICE_RELAY"), "loop"),
	}, args)
	p.cmd = exec.Command("/bin/sh", append([]string{"-c", setup + "\n" + `exec "$0" "$@"`, os.Args[0]}, all...)...)
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	p.cmd.Stderr = &p.said
	return p
}

// run starts a prepared program, until the test ends.
func (c *cluster) run(p *program) {
	c.t.Helper()
	check(c.t, c.Node.Start(p.cmd))
	go p.wait()
	c.t.Cleanup(func() {
		p.kill(syscall.SIGKILL)
		if strings.Contains(p.said.text(), "DATA RACE") || c.t.Failed() {
			c.t.Errorf("the program said:\n%s", p.said.text())
		}
	})
}

func (p *program) wait() {
	_ = p.cmd.Wait() // the status is in ProcessState
	close(p.exited)
}

func (p *program) waitReady() {
	p.t.Helper()
	select {
	case <-p.said.found:
	case <-p.exited:
		p.t.Fatalf("the program ended: %s", p.said.text())
	case <-time.After(patience):
		p.t.Fatalf("the program is not ready: %s", p.said.text())
	}
}

// kill sends a signal and waits for the end.
func (p *program) kill(signal syscall.Signal) int {
	p.t.Helper()
	_ = p.cmd.Process.Signal(signal)
	return p.waitExit()
}

func (p *program) waitExit() int {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.exited
		p.t.Fatalf("the program did not end: %s", p.said.text())
	}
	return p.cmd.ProcessState.ExitCode()
}

// descriptors counts the program's open descriptors.
func (p *program) descriptors() int {
	p.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	check(p.t, err)
	return len(entries)
}

// record is a line of the connection log, by its documented keys.
type record struct {
	Time      time.Time `json:"time"`
	Msg       string    `json:"msg"`
	Proto     string    `json:"proto"`
	Service   string    `json:"service"`
	Client    string    `json:"client"`
	Original  string    `json:"original"`
	Backend   string    `json:"backend"`
	Attempts  int       `json:"attempts"`
	Sticky    bool      `json:"sticky"`
	Dial      float64   `json:"dial_ms"`
	Duration  float64   `json:"duration_ms"`
	Up        int64     `json:"bytes_up"`
	Down      int64     `json:"bytes_down"`
	UpCount   int64     `json:"datagrams_up"`
	DownCount int64     `json:"datagrams_down"`
	Close     string    `json:"close"`
	Error     string    `json:"error"`
	Policy    string    `json:"policy"`
	ClientIP  string    `json:"client_ip"`
	Peer      string    `json:"peer"`
	UniqueID  string    `json:"unique_id"`
}

// records waits until the connection log has n lines at least, and returns all.
func (p *program) records(n int) []record {
	p.t.Helper()
	var all []record
	eventually(p.t, func() error {
		text, err := os.ReadFile(p.log)
		if err != nil {
			return err
		}
		all = all[:0]
		for line := range strings.Lines(string(text)) {
			var r record
			decoder := json.NewDecoder(strings.NewReader(line))
			decoder.DisallowUnknownFields()
			if err := decoder.Decode(&r); err != nil {
				return fmt.Errorf("line %q: %w", line, err)
			}
			all = append(all, r)
		}
		if len(all) < n {
			return fmt.Errorf("%d of %d connections are logged", len(all), n)
		}
		return nil
	})
	return all
}

// eventually waits until try succeeds.
func eventually(t testing.TB, try func() error) {
	t.Helper()
	within(t, patience, try)
}

// within waits until try succeeds, for the given time at most, of which what a busy
// machine takes is not counted, up to a limit.
func within(t testing.TB, limit time.Duration, try func() error) {
	t.Helper()
	watch, started := lab.StartStopwatch(), time.Now()
	for {
		err := try()
		if err == nil {
			return
		}
		if watch.Elapsed() > limit || time.Since(started) > limit+2*patience {
			t.Fatalf("after %v: %v", time.Since(started).Round(time.Millisecond), err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// ask connects, sends a request as HTTP clients do, and returns the name of the pod
// that answered (see lab.Pod.Serve).
func ask(from *lab.Namespace, address string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Second)
	defer cancel()
	return askOnce(ctx, from, address)
}

// answers asks n times and returns how often each pod answered.
func answers(t testing.TB, from *lab.Namespace, address string, n int) map[string]int {
	t.Helper()
	count := map[string]int{}
	for range n {
		who, err := ask(from, address)
		if err != nil {
			t.Fatalf("ask %s: %v", address, err)
		}
		count[who]++
	}
	return count
}

// wantRefused demands that a connection is refused, and at once.
func wantRefused(t testing.TB, from *lab.Namespace, address string) {
	t.Helper()
	watch := lab.StartStopwatch()
	if err := refused(from, address); err != nil {
		t.Errorf("%s: %v", address, err)
	}
	if took := watch.Elapsed(); took > time.Second {
		t.Errorf("%s was refused only after %v", address, took)
	}
}

func refused(from *lab.Namespace, address string) error {
	conn, err := from.Dial("tcp", address, patience)
	if err == nil {
		_ = conn.Close()
		return errors.New("connected, want refused")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w, want refused", err)
	}
	return nil
}

// serveAll runs a web server on port 8080 of every pod named, until the test ends.
func (c *cluster) serveAll(pods ...string) {
	c.t.Helper()
	for _, name := range pods {
		c.serve(name)
	}
}

// serve runs a web server on port 8080 of a pod and returns what stops it.
func (c *cluster) serve(pod string) (stop func()) {
	c.t.Helper()
	server, err := c.Pod(pod).Serve(8080)
	check(c.t, err)
	stop = func() { _ = server.Close() }
	c.t.Cleanup(stop)
	return stop
}

// iptables runs a program in the node and returns what it prints.
func (c *cluster) onNode(command ...string) string {
	c.t.Helper()
	out, err := c.Node.Output(exec.Command(command[0], command[1:]...))
	check(c.t, err)
	return string(out)
}

// ourRules returns the sorted lines of iptables-save on the node that name our
// chains.
func (c *cluster) ourRules() []string {
	c.t.Helper()
	var ours []string
	for _, program := range []string{"iptables-save", "ip6tables-save"} {
		for line := range strings.Lines(c.onNode(program)) {
			if strings.HasPrefix(line, "-A ") && (strings.Contains(line, "KUBE-PORTALS") || strings.Contains(line, "KUBE-NODEPORT")) {
				ours = append(ours, strings.TrimSpace(line))
			}
		}
	}
	slices.Sort(ours)
	return ours
}

// wantSaid tells whether the program's log has a text in n lines.
func wantSaid(p *program, text string, n int) error {
	said := 0
	for line := range strings.Lines(p.said.text()) {
		if strings.Contains(line, text) {
			said++
		}
	}
	if said != n {
		return fmt.Errorf("%q is in %d lines of the log, want %d: %s", text, said, n, p.said.text())
	}
	return nil
}
