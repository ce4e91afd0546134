package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// user runs kube-splice as somebody, outside of the namespaces that the tests have
// made for themselves.
type user struct {
	t      *testing.T
	folder string // theirs: the working directory, with the program and the demo's manifests
	id     uint32
}

// forEachUser runs a test as root and as nobody, one after the other: one machine
// has one lab of root's.
func forEachUser(t *testing.T, test func(t *testing.T, u *user)) {
	for name, id := range map[string]uint32{"root": 0, "nobody": nobody} {
		t.Run(name, func(t *testing.T) {
			if id != 0 {
				asNobody(t) // skips where that cannot be
			}
			test(t, newUser(t, id))
		})
	}
}

func newUser(t *testing.T, id uint32) *user {
	t.Helper()
	u := &user{t: t, folder: openFolder(t), id: id}
	manifests := filepath.Join(u.folder, "testdata", "manifests")
	check(t, os.MkdirAll(manifests, 0o755))
	check(t, os.CopyFS(manifests, os.DirFS("../../testdata/manifests")))
	program, err := os.Open("/proc/self/exe")
	check(t, err)
	defer func() { _ = program.Close() }()
	copied, err := os.OpenFile(filepath.Join(u.folder, "kube-splice"), os.O_CREATE|os.O_WRONLY, 0o755)
	check(t, err)
	_, err = io.Copy(copied, program)
	check(t, err)
	check(t, copied.Close())
	check(t, os.Mkdir(u.scratch(), 0o700))
	check(t, os.Chown(u.scratch(), int(id), int(id)))
	return u
}

// scratch is the folder for temporary and run-time files.
func (u *user) scratch() string { return filepath.Join(u.folder, "scratch") }

func (u *user) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = u.folder
	cmd.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "KUBE_SPLICE_ISOLATED=")
	})
	cmd.Env = append(cmd.Env, "TMPDIR="+u.scratch(), "XDG_RUNTIME_DIR="+u.scratch())
	if u.id != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: u.id, Gid: u.id}}
	}
	return cmd
}

func (u *user) run(args ...string) (said string, status int) {
	u.t.Helper()
	return toEnd(u.t, u.command(filepath.Join(u.folder, "kube-splice"), args...), (*exec.Cmd).Start)
}

// checkNothingLeft demands that no process of the program and no file lives on.
func (u *user) checkNothingLeft() {
	u.t.Helper()
	programs, err := filepath.Glob("/proc/[0-9]*/exe")
	check(u.t, err)
	for _, program := range programs {
		if path, _ := os.Readlink(program); strings.HasPrefix(path, u.folder) {
			u.t.Errorf("still running: %s", program)
		}
	}
	files, err := os.ReadDir(u.scratch())
	check(u.t, err)
	if len(files) > 0 {
		u.t.Errorf("left in the folder of temporary files: %v", files)
	}
	if named, _ := os.ReadDir("/run/netns"); len(named) > 0 {
		u.t.Errorf("namespaces left: %v", named)
	}
}

// fetch is a shell command that prints what a web server answers, given its address
// and port.
const fetch = `exec 3<>/dev/tcp/$1/$2; printf 'GET / HTTP/1.0\r\n\r\n' >&3; cat <&3`

// fetchFrom asks from a machine of a lab, given the words that lead there.
func (u *user) fetchFrom(enter, address, port, want string) {
	u.t.Helper()
	command := append(strings.Fields(enter), "bash", "-c", fetch, "bash", address, port)
	answer, err := u.command(command[0], command[1:]...).CombinedOutput()
	if err != nil || !strings.Contains(string(answer), want) {
		u.t.Errorf("%s asked by way of %s: %v: %q", address, enter, err, answer)
	}
}

func TestLabCanBePutUpUsedAndTakenDown(t *testing.T) {
	forEachUser(t, func(t *testing.T, u *user) {
		said, status := toEnd(t, u.command("./kube-splice", "lab", "up"), (*exec.Cmd).Start)
		t.Cleanup(func() { u.run("lab", "down") })
		if status != 0 {
			t.Fatalf("lab up: status %d: %s", status, said)
		}
		table, next, _ := strings.Cut(said, "\n\n")
		machines := regexp.MustCompile(`(?m)^(\S+) +(\S+) +(\S+) +(.*)$`).FindAllStringSubmatch(table, -1)[1:]
		addresses := map[string]string{}
		for _, line := range machines {
			addresses[line[1]] = line[2] + " " + line[3]
		}
		if len(machines) != 10 || addresses["pod-d"] != "10.244.2.11 fd00:10:244:2::11" || addresses["outside"] != "172.20.9.2 fd00:172:20:9::2" {
			t.Fatalf("lab up describes %v", addresses)
		}
		for _, line := range machines { // the line says how to run a command there
			u.fetchFrom(line[4], "10.244.2.11", "8080", "pod-d ")
		}
		said, status = u.run("lab", "up")
		refusal{status: exitError, words: words("up already, lab down")}.check(t, "a second lab up", said, status)

		u.doAsTold(next)
		u.checkNothingLeft()
		if said, status := u.run("lab", "down"); said != "there is no lab\n" || status != 0 {
			t.Errorf("a second lab down: status %d, said %q", status, said)
		}
	})
}

// doAsTold does what lab up tells its users to do next: start the proxy in the
// folder with the manifests, ask a Service, and end the lab with the proxy in it.
func (u *user) doAsTold(told string) {
	u.t.Helper()
	steps := regexp.MustCompile(`(?m)^  (.*)$`).FindAllStringSubmatch(told, -1)
	if len(steps) != 3 || !strings.Contains(told, "HTTP on port 8080") {
		u.t.Fatalf("lab up told %q", told)
	}
	proxy := u.command("sh", "-c", "exec "+steps[0][1])
	proxy.Env = append(proxy.Env, asProgram+"=1")
	said := &watchedOutput{word: "msg=ready", found: make(chan struct{})}
	proxy.Stderr = said
	check(u.t, proxy.Start())
	ended := make(chan error, 1)
	go func() { ended <- proxy.Wait() }()
	select {
	case <-said.found:
	case err := <-ended:
		u.t.Fatalf("%s: %v: %s", steps[0][1], err, said.text())
	}
	enter, ok := strings.CutSuffix(steps[1][1], " curl http://10.96.0.10/")
	if !ok {
		u.t.Errorf("lab up told to ask with %q", steps[1][1])
	}
	u.fetchFrom(enter, "10.96.0.10", "80", "pod-")
	goodbye, status := toEnd(u.t, u.command("sh", "-c", steps[2][1]), (*exec.Cmd).Start)
	if !strings.HasPrefix(goodbye, "programs ended in the lab: ") || status != 0 {
		u.t.Errorf("lab down: status %d, said %q", status, goodbye)
	}
	<-ended
}

func TestDemoShowsWhatItMustAndLeavesNothing(t *testing.T) {
	forEachUser(t, func(t *testing.T, u *user) {
		said, status := u.run("lab", "demo")
		if status != 0 {
			t.Fatalf("status %d: %s", status, said)
		}
		for text, times := range map[string]int{
			"answered  4 times": 12, "answered 12 times": 1, "connection refused": 1,
			"service=default/web:": 1, "proto=udp service=default/dns:": 1, "close=": 4, "Everything was as it must be": 1,
		} {
			if n := strings.Count(said, text); n < times {
				t.Errorf("%q is shown %d times, want %d or more: %s", text, n, times, said)
			}
		}
		u.checkNothingLeft()
	})
}

func TestDemoWhoseServicesAreWrongFailsInOneLine(t *testing.T) {
	u := newUser(t, 0)
	manifests := filepath.Join(u.folder, "testdata", "manifests")
	sticky, err := os.ReadFile(filepath.Join(manifests, "sticky.yaml"))
	check(t, err)
	notSticky := strings.ReplaceAll(string(sticky), "sessionAffinity: ClientIP", "sessionAffinity: None")
	notSticky = regexp.MustCompile(`(?s)  sessionAffinityConfig:\n.*?\n  (\S)`).ReplaceAllString(notSticky, "  $1")
	check(t, os.WriteFile(filepath.Join(manifests, "sticky.yaml"), []byte(notSticky), 0o600))
	said, status := u.run("lab", "demo")
	if status != exitError || strings.Count(said, "kube-splice: not as it must be: ") != 1 || !strings.Contains(said, "map[pod-a:4 pod-b:4 pod-c:4]") {
		t.Errorf("status %d, said %s", status, said)
	}
	u.checkNothingLeft()

	check(t, os.RemoveAll(manifests))
	said, status = u.run("lab", "demo")
	if status == 0 || !strings.Contains(said, "kube-splice: ") || !strings.Contains(said, "manifests") {
		t.Errorf("without manifests: status %d, said %s", status, said)
	}
	u.checkNothingLeft()
}

func TestDemoThatIsInterruptedLeavesNothing(t *testing.T) {
	u := newUser(t, 0)
	cmd := u.command(filepath.Join(u.folder, "kube-splice"), "lab", "demo")
	cmd.Env = append(cmd.Env, asProgram+"=1")
	said := &watchedOutput{word: "answered", found: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = said, said
	check(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	<-said.found
	check(t, cmd.Process.Signal(syscall.SIGINT))
	select {
	case err := <-ended:
		if err == nil {
			t.Errorf("it ended as if all were well: %s", said.text())
		}
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		t.Fatalf("it did not end: %s", said.text())
	}
	u.checkNothingLeft()
}
