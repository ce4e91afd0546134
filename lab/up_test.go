package lab_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/lab"
)

// up starts a lasting lab and makes sure that it ends with the test.
func up(t *testing.T) *lab.Running {
	t.Helper()
	r, err := lab.Up(t.Context(), lab.UpOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := lab.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// down ends the lab, if there is to be one, in which nothing runs.
func down(t *testing.T, want bool) {
	t.Helper()
	ended, err := lab.Down(t.Context())
	if err != nil || ended != (lab.Ended{Lab: want}) {
		t.Errorf("Down gave %+v, %v; want %v", ended, err, want)
	}
}

// namesLeft lists the named namespaces and the state of lasting labs.
func namesLeft(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("/run/netns/*")
	if err != nil {
		t.Fatal(err)
	}
	state, err := filepath.Glob("/run/kube-splice-lab*")
	if err != nil {
		t.Fatal(err)
	}
	return append(names, state...)
}

// end sends the keeper a signal, and waits until it is gone.
func end(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatal(err)
	}
	if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
}

func TestLastingLabServesUntilDown(t *testing.T) {
	before := look(t)
	r := up(t)
	for machine, want := range map[string]string{"client": "pod-e 10.244.1.50:", "outside": "pod-e 172.20.9.2:"} {
		args := append(r.Enter(machine), os.Args[0], "http://10.244.2.12:8080")
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = append(os.Environ(), programEnv+"=get")
		if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("from %s: %q, %v; want %q", machine, out, err, want)
		}
	}
	down(t, true)
	before.compare(t, look(t))
	if left := namesLeft(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := syscall.Kill(r.PID, 0); err == nil {
		if _, err := syscall.Wait4(r.PID, nil, syscall.WNOHANG, nil); err != nil {
			t.Errorf("the keeper is still there: %v", err)
		}
	}
	down(t, false)
}

func TestSecondUpIsRefusedInOneLine(t *testing.T) {
	r := up(t)
	_, err := lab.Up(t.Context(), lab.UpOptions{Prefix: "other-"})
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(r.PID)) || strings.Contains(err.Error(), "\n") {
		t.Errorf("the second Up said %v", err)
	}
	if err := syscall.Kill(r.PID, 0); err != nil {
		t.Errorf("the first lab is gone: %v", err)
	}
}

func TestLeftoversOfACrashAreRemoved(t *testing.T) {
	end(t, up(t).PID, syscall.SIGKILL)
	if len(namesLeft(t)) < 10 {
		t.Fatalf("the crash left only %v", namesLeft(t))
	}
	down(t, true)
	if left := namesLeft(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	end(t, up(t).PID, syscall.SIGKILL)
	up(t) // over the leftovers
}

func TestKeeperRemovesItsLabWhenAskedToEnd(t *testing.T) {
	end(t, up(t).PID, syscall.SIGTERM)
	if names, _ := filepath.Glob("/run/netns/*"); len(names) > 0 {
		t.Errorf("left behind: %v", names)
	}
	up(t) // over the record of a keeper that is gone
}

func TestDownEndsNoForeignProcess(t *testing.T) {
	r := up(t)
	bystander := exec.Command("sleep", "60")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = bystander.Process.Kill()
		_ = bystander.Wait()
	}()
	end(t, r.PID, syscall.SIGKILL)
	const path = "/run/kube-splice-lab/state.json"
	state, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	state = regexp.MustCompile(`"pid":\d+`).ReplaceAll(state, []byte(`"pid":`+strconv.Itoa(bystander.Process.Pid)))
	if err := os.WriteFile(path, state, 0o600); err != nil {
		t.Fatal(err)
	}
	down(t, true)
	if n, err := syscall.Wait4(bystander.Process.Pid, nil, syscall.WNOHANG, nil); n != 0 {
		t.Errorf("the bystander was ended (%v)", err)
	}
}

func TestUpTouchesNoNamespaceOfOthers(t *testing.T) {
	if err := os.Mkdir("/run/netns", 0o755); err != nil {
		t.Fatal(err)
	}
	const foreign = "/run/netns/ks-pod-b"
	if err := os.WriteFile(foreign, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll("/run/netns")
	_, err := lab.Up(t.Context(), lab.UpOptions{})
	if err == nil || !strings.Contains(err.Error(), foreign+" exists") || strings.Contains(err.Error(), "\n") {
		t.Errorf("Up said %v", err)
	}
	down(t, false)
	if left := namesLeft(t); len(left) != 1 || left[0] != foreign {
		t.Errorf("left behind: %v, want %s alone", left, foreign)
	}
}

func TestGivenUpUpLeavesNothingAfterDown(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lab.Up(ctx, lab.UpOptions{}); err == nil {
		t.Error("Up succeeded")
	}
	down(t, true)
	if left := namesLeft(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// run starts a shell in a machine of the lab, or in no machine, which first says that
// it is ready. It is waited for when the test ends, and then must have ended.
func run(t *testing.T, enter []string, script string) *exec.Cmd {
	t.Helper()
	args := append(enter, "sh", "-c", script+"; echo ready; while :; do sleep 0.05; done")
	cmd := exec.Command(args[0], args[1:]...)
	if ready := firstLine(t, cmd); ready != "ready" {
		t.Fatalf("the program said %q", ready)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd
}

func TestDownEndsProgramsInTheLabAndNoOthers(t *testing.T) {
	other, err := lab.New(lab.Config{Pods: 1, OneNode: true, Prefix: "other-"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	r := up(t)
	obeys := run(t, r.Enter("client"), "trap 'exit 7' TERM")
	stays := run(t, r.Enter("pod-e"), "trap '' TERM")
	spared := []*exec.Cmd{run(t, nil, ":"), run(t, []string{"ip", "netns", "exec", "other-client"}, ":")}

	ended, err := lab.Down(t.Context())
	if err != nil || !ended.Lab || ended.Programs < 2 || ended.Programs > 4 { // each shell has a sleep
		t.Fatalf("Down gave %+v, %v; want two to four programs", ended, err)
	}
	if status := exitStatus(t, obeys); status != 7 {
		t.Errorf("the first ended with status %d, want its own for SIGTERM", status)
	}
	if err := stays.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("the second ended with %v", err)
	}
	for _, cmd := range spared {
		if cmd.Process.Kill() != nil || cmd.Wait().Error() != "signal: killed" {
			t.Errorf("a program outside of the lab was ended: %v", cmd.ProcessState)
		}
	}
}

func TestDownFromInsideIsRefused(t *testing.T) {
	r := up(t)
	args := append(r.Enter("client"), os.Args[0])
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), programEnv+"=down")
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Run(); err == nil || !strings.Contains(said.String(), "inside the lab; leave it") {
		t.Errorf("Down ended with %v and said %q", err, said.String())
	}
}

func TestKeeperEndsWithTheProcessItIsToldOf(t *testing.T) {
	life := run(t, nil, ":")
	t.Setenv(lab.UntilEnv, strconv.Itoa(life.Process.Pid))
	r := up(t)
	_ = life.Process.Kill()
	_ = life.Wait()
	late := time.AfterFunc(5*time.Second, func() { _ = syscall.Kill(r.PID, syscall.SIGKILL) })
	defer late.Stop()
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(r.PID, &status, 0, nil); err != nil || !status.Exited() || status.ExitStatus() != 0 {
		t.Errorf("the keeper ended with %v, %v; want status 0", status, err)
	}
	if names, _ := filepath.Glob("/run/netns/*"); len(names) > 0 {
		t.Errorf("left behind: %v", names)
	}
	if _, err := lab.Up(t.Context(), lab.UpOptions{}); err == nil {
		t.Error("a lab was put up for a process that is gone")
	}
}

func TestPrefixMustFitAFileName(t *testing.T) {
	if _, err := lab.Up(t.Context(), lab.UpOptions{Prefix: "../x"}); err == nil || !strings.Contains(err.Error(), "slash") {
		t.Errorf("Up said %v", err)
	}
}

func TestConcurrentCommandsAreRefused(t *testing.T) {
	if err := os.Mkdir("/run/kube-splice-lab", 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll("/run/kube-splice-lab")
	dir, err := os.Open("/run/kube-splice-lab")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	if _, err := lab.Down(t.Context()); err == nil || !strings.Contains(err.Error(), "another lab command") {
		t.Errorf("Down said %v", err)
	}
}

func TestStateFolderOfSomebodyElseIsNotUsed(t *testing.T) {
	if err := os.Mkdir("/run/kube-splice-lab", 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll("/run/kube-splice-lab")
	if err := os.Chmod("/run/kube-splice-lab", 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := lab.Up(t.Context(), lab.UpOptions{}); err == nil || !strings.Contains(err.Error(), "somebody else") {
		t.Errorf("Up said %v", err)
	}
}

func TestLastingLabWithoutRoot(t *testing.T) {
	cmd := program(t, "up-and-down")
	asNobody(t, cmd)
	// t.TempDir lies in a folder that is closed to others.
	dir, err := os.MkdirTemp("/tmp", "lab-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(cmd.Env, "TMPDIR="+dir)
	if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), "pod-d 10.244.1.50:") {
		t.Errorf("the client pod got %q, %v", out, err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestDescriptionSaysHowToEnter(t *testing.T) {
	r := up(t)
	var said bytes.Buffer
	if err := r.Describe(&said); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`MACHINE +IPv4 +IPv6 +RUN A COMMAND THERE`, `router +- +- +ip netns exec ks-router`,
		`node +172.20.1.2 +fd00:172:20:1::2 +ip netns exec ks-node`,
		`client +10.244.1.50 +fd00:10:244:1::50 +ip netns exec ks-client`,
	} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(said.String()) {
			t.Errorf("no %q in\n%s", want, said.String())
		}
	}
}
