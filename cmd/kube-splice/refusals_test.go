package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// refusal is a way to start the program that it must refuse in one line.
type refusal struct {
	setup  string
	args   []string
	status int
	words  []string // what the line has to say
}

func words(text string) []string { return strings.Fields(text) }

func TestWrongCommandLinesAreRefusedInOneLine(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.apply("web", newService("web", "10.96.0.10"))
	good := []string{"--manifests", c.manifests}
	for _, wrong := range []refusal{
		{args: words("--no-such-flag"), words: words("--no-such-flag --help")},
		{args: words("serve"), words: words("serve --help")},
		{args: words("lab sideways"), words: words("sideways --help")},
		{args: words("cleanup everything"), words: words("everything --help")},
		{args: []string{}, words: words("--manifests PATH")},
		{args: words("--manifests /no/such/folder"), words: words("--manifests /no/such/folder")},
		{args: append(words("--redirect ipvs"), good...), words: words("--redirect ipvs iptables none")},
		{args: append(words("--bind-address eth0"), good...), words: words("--bind-address eth0")},
		{args: append(words("--bind-address 127.0.0.1"), good...), words: words("--bind-address 127.0.0.1 0.0.0.0")},
		{args: append(words("--proxy-port-range 5-3"), good...), words: words("--proxy-port-range 5-3 FIRST-LAST")},
		{args: append(words("--proxy-port-range 60000+9999"), good...), words: words("--proxy-port-range 65535")},
		{args: append(words("--nodeport-addresses 172.20.1.2"), good...), words: words("--nodeport-addresses 172.20.1.2/32 CIDR primary localhost all")},
		{args: append(words("--dial-timeout 5"), good...), words: words("--dial-timeout 30s --help")},
		{args: append(words("--dial-timeout 0s"), good...), words: words("--dial-timeout")},
		{args: append(words("--udp-timeout 0s"), good...), words: words("--udp-timeout 0s")},
		{args: append(words("--udp-max-flows 0"), good...), words: words("--udp-max-flows 0")},
		{args: append(words("--drain-timeout -1s"), good...), words: words("--drain-timeout")},
		{args: append(words("--min-update-interval -1s"), good...), words: words("--min-update-interval")},
		{args: append(words("--iptables-min-sync-period 2m"), good...), words: words("--iptables-min-sync-period 2m0s 30s")},
		{args: append(words("--connection-log xml"), good...), words: words("--connection-log xml off text json")},
		{args: append(words("--connection-log-file /tmp/log"), good...), words: words("--connection-log-file --connection-log")},
		{args: append(words("--statsd-address localhost"), good...), words: words("--statsd-address localhost port")},
		{args: append(words("--statsd-address :8125"), good...), words: words("--statsd-address :8125 host")},
		{args: append(words("--statsd-address 127.0.0.1:0"), good...), words: words("--statsd-address 127.0.0.1:0 65535")},
		{args: append(words("--log-format xml"), good...), words: words("--logging-format xml text json")},
		{args: append(words("--logging-format xml"), good...), words: words("--logging-format xml text json")},
		{args: append(words("--proxy-mode kernelspace"), good...), words: words("--proxy-mode kernelspace userspace iptables")},
		{args: append(words("--oom-score-adj 2000"), good...), words: words("--oom-score-adj 2000 -1000 1000")},
		{args: append(words("--detect-local-mode Guess"), good...), words: words("--detect-local-mode Guess ClusterCIDR")},
		{args: append(words("--cluster-cidr 10.0.0.0/8,10.1.0.0/16"), good...), words: words("--cluster-cidr 10.1.0.0/16 family")},
		{args: append(words("--conntrack-min -1"), good...), words: words("--conntrack-min -1")},
		{args: append(words("--healthz-bind-address here:1"), good...), words: words("--healthz-bind-address here:1 IP:port")},
		{args: append(words("--feature-gates A"), good...), words: words("--feature-gates A NAME=true")},
		{args: append([]string{"--hostname-override", " "}, good...), words: words("--hostname-override")},
		{args: append(words("--tcp-keepalive-count 0"), good...), words: words("--tcp-keepalive-count")},
		{args: append(words("-v loud"), good...), words: words("-v loud --help")},
	} {
		wrong.status = exitUsage
		said, status := c.runToEnd("", wrong.args...)
		wrong.check(t, strings.Join(wrong.args, " "), said, status)
	}
	if rules := c.ourRules(); len(rules) > 0 {
		t.Errorf("rules were written: %v", rules)
	}
}

func (r refusal) check(t *testing.T, how, said string, status int) {
	t.Helper()
	var lines []string // what is said in normal life may come before
	for line := range strings.Lines(said) {
		if !strings.Contains(line, "level=INFO") {
			lines = append(lines, line)
		}
	}
	if status != r.status || len(lines) != 1 || !strings.HasPrefix(lines[0], "kube-splice: ") {
		t.Errorf("%s: status %d, want %d and one line, not %q", how, status, r.status, said)
	}
	if strings.Count(said, "exit status") > 1 {
		t.Errorf("%s: %q says the same several times", how, said)
	}
	for _, word := range r.words {
		if !strings.Contains(said, word) {
			t.Errorf("%s: %q does not mention %q", how, said, word)
		}
	}
}

func TestProgramThatCannotStartSaysWhyInOneLine(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	broken := filepath.Join(t.TempDir(), "broken.yaml")
	check(t, os.WriteFile(broken, []byte("kind: Service\napiVersion: v1\n---\nkind: Service\napiVersion: v1\nspek: {}\n"), 0o600))
	incomplete, failing := c.programs("nft"), c.programs("nft")
	check(t, os.Remove(filepath.Join(incomplete.dir, "iptables-restore")))
	failing.wrap("iptables-save", "echo 'the kernel has no nat table' >&2; exit 3")
	good := []string{"--manifests", c.manifests}
	for how, wrong := range map[string]refusal{
		"no iptables":         {"PATH=/nowhere", good, exitError, words("iptables PATH install")},
		"no iptables-restore": {"PATH=" + incomplete.dir, good, exitError, words("iptables-restore PATH install")},
		"broken input":        {"exec <" + broken, words("--manifests -"), exitError, words("input document 2 spek")},
		"log in no folder": {"", append(words("--connection-log text --connection-log-file /no/such/folder/log"), good...),
			exitError, words("--connection-log-file /no/such/folder/log")},
		"failing iptables": {failing.setup(), good, exitError, words("iptables-save kernel nat table")},
	} {
		said, status := c.runToEnd(wrong.setup, wrong.args...)
		wrong.check(t, how, said, status)
	}
}

// nobody is a user without privileges.
const nobody = 65534

// asNobody makes a command that is kube-splice start without privileges.
func asNobody(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	users, err := os.ReadFile("/proc/self/uid_map")
	check(t, err)
	if fields := strings.Fields(string(users)); len(fields) == 3 && fields[2] == "1" {
		t.Skip("only root can be somebody else; without root, all of the tests are run without privileges")
	}
	// The folder of the test binary is closed to others, its file is not.
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd
}

func TestProgramWithoutPrivilegesSaysWhichItNeeds(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	folder := openFolder(t)
	for how, wrong := range map[string]refusal{
		"proxy":   {"", []string{"--manifests", folder}, exitError, words("root CAP_NET_ADMIN")},
		"cleanup": {"", words("cleanup"), exitError, words("root CAP_NET_ADMIN")},
		"folder of somebody else": {"", []string{"--manifests", c.manifests, "--redirect", "none"},
			exitUsage, []string{c.manifests, "permission denied"}},
	} {
		said, status := toEnd(t, asNobody(t, wrong.args...), c.Node.Start)
		wrong.check(t, how, said, status)
	}
	closed := filepath.Join(folder, "closed")
	check(t, os.Mkdir(closed, 0o700))
	wrong := refusal{"", []string{"--manifests", closed, "--redirect", "none"}, exitError, []string{closed, "permission denied"}}
	said, status := toEnd(t, asNobody(t, wrong.args...), c.Node.Start)
	wrong.check(t, "closed folder", said, status)
}

// openFolder returns a folder that every user can read.
func openFolder(t testing.TB) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "kube-splice-")
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(folder)) })
	check(t, os.Chmod(folder, 0o755))
	return folder
}

func TestVersionIsOneLine(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0], "--version")
	said, status := toEnd(t, cmd, (*exec.Cmd).Start)
	if fields := strings.Fields(said); status != 0 || len(fields) != 4 || fields[0] != "kube-splice" || strings.Count(said, "\n") != 1 {
		t.Errorf("status %d, said %q, want kube-splice, its version, Go's and the platform", status, said)
	}
}
