package lab_test

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/lab"
)

func TestIsolatedProgramHasANetworkAndARunOfItsOwn(t *testing.T) {
	if here, outer := where(t), os.Getenv(outerNetEnv); here == outer || outer == "" {
		t.Errorf("network namespace %s, outside %s", here, outer)
	}
	links, err := net.Interfaces()
	if err != nil || len(links) != 1 || links[0].Flags&net.FlagUp == 0 {
		t.Errorf("interfaces %v, %v; want a loopback that is up", links, err)
	}
	var run unix.Statfs_t
	if err := unix.Statfs("/run", &run); err != nil || run.Type != unix.TMPFS_MAGIC {
		t.Errorf("/run is of type %x, %v", run.Type, err)
	}
}

// mount mounts something for the length of a test.
func mount(t *testing.T, source, target, kind string, flags uintptr) {
	t.Helper()
	if err := unix.Mount(source, target, kind, flags, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func TestMountsOfAnIsolatedProgramSpreadNowhere(t *testing.T) {
	shared := t.TempDir()
	mount(t, "tmpfs", shared, "tmpfs", 0)
	if err := unix.Mount("", shared, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	mounts, err := program(t, "mounts").Output()
	if err != nil || !bytes.Contains(mounts, []byte(shared)) {
		t.Fatalf("mounts %s, %v", mounts, err)
	}
	if bytes.Contains(mounts, []byte(" shared:")) || bytes.Contains(mounts, []byte(" master:")) {
		t.Errorf("mounts are not private:\n%s", mounts)
	}
}

// Container engines mount /proc/sys like this.
func readOnlySysctls(t *testing.T) {
	t.Helper()
	mount(t, "/proc/sys", "/proc/sys", "", unix.MS_BIND)
	flags := uintptr(unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if err := unix.Mount("", "/proc/sys", "", flags, ""); err != nil {
		t.Fatal(err)
	}
}

func TestReadOnlySysctlsAreMadeWritable(t *testing.T) {
	readOnlySysctls(t)
	if out, err := program(t, "small-lab").Output(); err != nil || !strings.HasPrefix(string(out), "pod-a 172.20.9.2:") {
		t.Errorf("wrote %q, %v", out, err)
	}
}

func TestSysctlsThatStayReadOnlyAreExplained(t *testing.T) {
	cmd := program(t, "small-lab")
	asNobody(t, cmd)
	readOnlySysctls(t)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Run(); err == nil || !strings.Contains(said.String(), "/proc/sys is read-only") || !strings.Contains(said.String(), "--privileged") {
		t.Errorf("ended with %v and said %q", err, said.String())
	}
}

func TestIsolatingAgainChangesNothing(t *testing.T) {
	before := look(t)
	if err := lab.Isolate(); err != nil {
		t.Fatal(err)
	}
	before.compare(t, look(t))
}

// exitStatus waits for cmd.
func exitStatus(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

func TestIsolatePassesArgumentsStreamsAndStatus(t *testing.T) {
	cmd := program(t, "echo", "some", "arguments")
	cmd.Stdin = strings.NewReader("and input")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("ended with %v, want status 7", err)
	}
	if want := "some arguments\nand input"; string(out) != want {
		t.Errorf("wrote %q, want %q", out, want)
	}
}

func TestIsolatePassesSignalsOn(t *testing.T) {
	cmd := program(t, "await-term")
	firstLine(t, cmd)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status := exitStatus(t, cmd); status != 9 {
		t.Errorf("status %d, want 9", status)
	}
}

func TestIsolateTellsThatASignalEndedTheProgram(t *testing.T) {
	cmd := program(t, "die")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if status := exitStatus(t, cmd); status != 128+9 {
		t.Errorf("status %d, want %d", status, 128+9)
	}
}

func TestIsolatedProgramDoesNotOutliveTheOneThatStartedIt(t *testing.T) {
	cmd := program(t, "await-term")
	inner, err := strconv.Atoi(firstLine(t, cmd))
	if err != nil {
		t.Fatal(err)
	}
	pidfd, err := unix.PidfdOpen(inner, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	exitStatus(t, cmd)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 5000)
	if n != 1 {
		t.Errorf("the isolated program lives on (%v)", err)
	}
}

func TestLabWorksWithoutRoot(t *testing.T) {
	cmd := program(t, "small-lab")
	asNobody(t, cmd)
	if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), "pod-a 172.20.9.2:") {
		t.Errorf("wrote %q, %v", out, err)
	}
}

func TestLabWorksForARootWithoutCapabilities(t *testing.T) {
	cmd := program(t, "without-cap")
	if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), "pod-a 172.20.9.2:") {
		t.Errorf("wrote %q, %v", out, err)
	}
}

// The limit on user namespaces is the test's own: it holds in the user namespace
// that the program made for itself.
func TestRefusedNamespacesAreExplainedInOneLine(t *testing.T) {
	cmd := program(t, "refused")
	asNobody(t, cmd)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("ended with %v, want status 1", err)
	}
	for _, want := range []string{"CAP_SYS_ADMIN", "run as root", "--privileged"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("no %q in %q", want, said.String())
		}
	}
	if strings.Count(said.String(), "\n") != 1 {
		t.Errorf("not one line: %q", said.String())
	}
}
