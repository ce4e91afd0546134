package lab_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/lab"
)

const (
	programEnv  = "LAB_TEST_PROGRAM" // which of the programs below to be
	outerNetEnv = "LAB_TEST_OUTER_NET"
	isolatedEnv = "KUBE_SPLICE_ISOLATED"
)

func TestMain(m *testing.M) {
	if slices.Equal(os.Args[1:], []string{"lab", "keep"}) {
		exit(lab.Keep(context.Background()))
	}
	if name := os.Getenv(programEnv); name != "" {
		exit(programs[name]())
	}
	if os.Getenv(outerNetEnv) == "" {
		outer, _ := os.Readlink("/proc/self/ns/net")
		os.Setenv(outerNetEnv, outer)
		// Programs built with the race detector wait for a second when they end.
		os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	if err := lab.Isolate(); err != nil {
		exit(err)
	}
	os.Setenv(lab.UntilEnv, strconv.Itoa(os.Getpid()))
	goleak.VerifyTestMain(m)
}

func exit(err error) {
	var status statusError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &status):
		os.Exit(int(status))
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

type statusError int

func (s statusError) Error() string { return fmt.Sprint("exit status ", int(s)) }

// programs are small programs that use the package the way real ones do. The tests
// run them as processes of their own.
var programs = map[string]func() error{
	"echo":        echo,
	"await-term":  awaitTerm,
	"die":         die,
	"mounts":      mounts,
	"small-lab":   smallLab,
	"without-cap": withoutCapability,
	"refused":     refused,
	"get":         func() error { return getTo(os.Stdout) },
	"up-and-down": upAndDown,
	"down":        func() error { _, err := lab.Down(context.Background()); return err },
}

// program prepares a process that is one of the programs, outside of any Isolate.
func program(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Stderr = os.Stderr
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, isolatedEnv+"=") && !strings.HasPrefix(e, "XDG_RUNTIME_DIR=") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, programEnv+"="+name)
	return cmd
}

// asNobody makes cmd start without any privilege; only root can.
func asNobody(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	if fields := strings.Fields(string(ids)); len(fields) == 3 && fields[2] == "1" {
		t.Skip("this user namespace has no second user; all of the tests run without root already")
	}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

// echo copies its input after its arguments, and ends with status 7.
func echo() error {
	if err := lab.Isolate(); err != nil {
		return err
	}
	fmt.Println(strings.Join(os.Args[1:], " "))
	if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
		return err
	}
	return statusError(7)
}

// awaitTerm ends with status 9 when it is asked to end. First it says which
// process it is.
func awaitTerm() error {
	if err := lab.Isolate(); err != nil {
		return err
	}
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	fmt.Println(os.Getpid())
	<-terms
	return statusError(9)
}

func die() error {
	if err := lab.Isolate(); err != nil {
		return err
	}
	return syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

func mounts() error {
	if err := lab.Isolate(); err != nil {
		return err
	}
	list, err := os.ReadFile("/proc/self/mountinfo")
	fmt.Print(string(list))
	return err
}

// smallLab isolates itself, and uses a lab: its sysctls, names, rules and servers.
func smallLab() error {
	if err := lab.Isolate(); err != nil {
		return err
	}
	l, err := lab.New(lab.Config{Pods: 1, OneNode: true, Prefix: "small-"})
	if err != nil {
		return err
	}
	defer l.Close()
	server, err := l.Pod("pod-a").Serve(80)
	if err != nil {
		return err
	}
	defer server.Close()
	if _, err := l.Node.Output(exec.Command("iptables", "-t", "nat", "-N", "A-CHAIN")); err != nil {
		return err
	}
	body, err := get(context.Background(), l.Outside.DialContext, "http://10.244.1.11")
	fmt.Print(body)
	return err
}

// withoutCapability is smallLab started by a root that may not make namespaces, as
// in most containers.
func withoutCapability() error {
	if os.Getenv(isolatedEnv) == "" {
		if err := dropSysAdmin(); err != nil {
			return err
		}
	}
	return smallLab()
}

// refused tries to isolate itself where nobody may make namespaces: it isolates
// itself twice, and allows no more user namespaces within the first.
func refused() error {
	if err := lab.Isolate(); err != nil {
		return err
	}
	if ids, err := os.ReadFile("/proc/self/uid_map"); err != nil || len(strings.Fields(string(ids))) != 3 || strings.Fields(string(ids))[2] != "1" {
		return fmt.Errorf("not in a user namespace of its own: %s, %w", ids, err)
	}
	if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
		return err
	}
	if err := dropSysAdmin(); err != nil {
		return err
	}
	os.Unsetenv(isolatedEnv)
	return lab.Isolate()
}

// dropSysAdmin takes a capability from the calling thread and its children to be.
func dropSysAdmin() error {
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return err
	}
	sets[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
	sets[0].Permitted &^= 1 << unix.CAP_SYS_ADMIN
	return unix.Capset(&header, &sets[0])
}

// upAndDown is the life of a lab that outlives its command, and prints what a
// command run in its client pod printed.
func upAndDown() error {
	ctx := context.Background()
	r, err := lab.Up(ctx, lab.UpOptions{})
	if err != nil {
		return err
	}
	self, err := os.Open("/proc/self/exe") // its folder may be closed to this user
	if err != nil {
		return err
	}
	args := append(r.Enter("client"), "/proc/self/fd/3", "http://10.244.2.11:8080")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.ExtraFiles = []*os.File{self}
	cmd.Env = append(os.Environ(), programEnv+"=get")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err = cmd.Run()
	_, downErr := lab.Down(ctx)
	return errors.Join(err, downErr)
}

func getTo(w io.Writer) error {
	body, err := get(context.Background(), new(net.Dialer).DialContext, os.Args[1])
	fmt.Fprint(w, body)
	return err
}

// get fetches a page over a connection of its own.
func get(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error), url string) (string, error) {
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}

// firstLine starts cmd and returns the first line that it prints.
func firstLine(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}
