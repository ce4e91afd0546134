package redirect_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
	"github.com/kube-splice/kube-splice/redirect"
	"github.com/kube-splice/kube-splice/service"
)

// fiveTimesBusy is a script that ends with status 4 five times and then is the
// program itself.
const fiveTimesBusy = `
tried=$(wc -l <$DIR/tried.$(basename $0) 2>/dev/null || echo 0)
if [ $tried -lt 5 ]; then echo >>$DIR/tried.$(basename $0); echo "Another app is currently holding the xtables lock" >&2; exit 4; fi
exec $REAL "$@"`

func TestBusyProgramsAreTriedAgain(t *testing.T) {
	for _, name := range []string{"iptables", "iptables-save", "ip6tables-restore"} {
		t.Run(name, func(t *testing.T) {
			p := choose(t, "nft")
			p.wrap(name, fiveTimesBusy)
			n := newNode(t)
			n.sync(n.open(redirect.Config{}), every())
			checkPlaces(t, n)
			if got := strings.Count(p.note("tried."+name), "\n"); got != 5 {
				t.Errorf("the program was busy %d times, want 5", got)
			}
		})
	}
}

func TestBusyAfterTheStartIsTriedAgain(t *testing.T) {
	p := choose(t, "legacy")
	n := newNode(t)
	r := n.open(redirect.Config{})
	p.wrap("iptables", fiveTimesBusy)
	n.sync(r, every())
	checkPlaces(t, n)
}

// A program ends with the status of a busy one for want of a kernel module too.
func TestMissingKernelModuleIsOneClearLineAtOnce(t *testing.T) {
	p := choose(t, "nft")
	n := newNode(t)
	r := n.open(redirect.Config{})
	p.wrap("iptables-restore", "echo >>$DIR/tried; echo 'Warning: Extension addrtype revision 0 not supported, missing kernel module?' >&2; exit 4")
	expectError(t, n.trySync(t.Context(), r, every()), "IPv4", "iptables-restore", "missing kernel module")
	if tried := len(p.note("tried")); tried != 1 {
		t.Errorf("tried %d times, want once", tried)
	}
}

// holdLock holds the lock of the legacy programs, until the returned function is
// called.
func holdLock(t *testing.T) (release func()) {
	t.Helper()
	cmd := exec.Command("flock", "/run/xtables.lock", "sh", "-c", "echo held; read line")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	release = func() {
		stdin.Close()
		_ = cmd.Wait() // ends with the status of a failed read
	}
	return release
}

func TestLockOfAnotherProgramIsWaitedFor(t *testing.T) {
	choose(t, "legacy")
	n := newNode(t)
	r := n.open(redirect.Config{LockWait: time.Second})
	release := holdLock(t)
	start := time.Now()
	timer := time.AfterFunc(2500*time.Millisecond, release)
	defer timer.Stop()
	n.sync(r, every())
	if took := time.Since(start); took < 2*time.Second {
		t.Errorf("Sync took %v: the lock was not in its way", took)
	}
	checkPlaces(t, n)
}

func TestCancelledSyncReturnsPromptly(t *testing.T) {
	cases := map[string]func(t *testing.T, p *programs, n *node, r *redirect.IPTables){
		"waiting for the lock": func(t *testing.T, _ *programs, _ *node, _ *redirect.IPTables) {
			t.Cleanup(holdLock(t))
		},
		"waiting for the lock to place a jump": func(t *testing.T, _ *programs, n *node, r *redirect.IPTables) {
			n.sync(r, every())
			n.run("iptables -t nat -D PREROUTING 1")
			t.Cleanup(holdLock(t))
		},
		"program hangs": func(_ *testing.T, p *programs, _ *node, _ *redirect.IPTables) { p.wrap("iptables-save", "sleep 60") },
		"always busy":   func(_ *testing.T, p *programs, _ *node, _ *redirect.IPTables) { p.wrap("iptables-restore", "exit 4") },
	}
	for name, trouble := range cases {
		t.Run(name, func(t *testing.T) {
			p := choose(t, "legacy")
			n := newNode(t)
			r := n.open(redirect.Config{})
			trouble(t, p, n, r)
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			watch := lab.StartStopwatch()
			err := n.trySync(ctx, r, every())
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v, want the context's", err)
			}
			if took := watch.Elapsed(); took > 2*time.Second {
				t.Errorf("returned after %v", took)
			}
		})
	}
}

func TestFailedWriteKeepsTheOldRulesAndNamesTheLine(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		n := newNode(t)
		r := n.open(redirect.Config{})
		n.sync(r, every())
		before := n.table("iptables-save")
		p.wrap("iptables-restore", `sed 's/--to-ports 41000/--to-ports 999999/' | $REAL "$@"`)
		changed := every()
		changed.Bindings = append(changed.Bindings,
			binding("shop/new", service.TCP, service.ClusterIP, "10.96.0.77", 80, 41000),
			binding("shop/new", service.TCP, service.ClusterIP, "fd00:10:96::77", 80, 41000))
		err := n.trySync(t.Context(), r, changed)
		expectError(t, err, "IPv4", "line ", `"shop/new"`, "--to-ports 41000", "10.96.0.77")
		if got := n.table("iptables-save"); got != before {
			t.Errorf("IPv4 rules changed:\n%s\nbefore:\n%s", got, before)
		}
		if got := n.table("ip6tables-save"); !strings.Contains(got, "fd00:10:96::77") {
			t.Errorf("IPv6 rules were not written:\n%s", got)
		}
	})
}

// expectError wants an error of one line that has all the parts.
func expectError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", parts)
		return
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error has several lines: %v", err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error does not say %q: %v", part, err)
		}
	}
}

func TestNamesThatNoRuleCanCarryAreRefusedAlone(t *testing.T) {
	choose(t, "nft")
	bad := map[string]string{
		"shop/a\"b":                        `contains '"'`,
		"shop/a\nCOMMIT":                   `contains '\n'`,
		"shop/a\\":                         `contains '\\'`,
		"shop/a:b:\x01":                    `contains '\x01'`,
		"shop/a/b":                         "cannot be told from its parts",
		"shop/" + strings.Repeat("x", 251): "256 bytes",
	}
	for name, reason := range bad {
		n := newNode(t)
		want := every()
		want.Bindings = append([]service.Binding{binding(name, service.TCP, service.ClusterIP, "10.96.0.66", 80, 41000)}, want.Bindings...)
		err := n.trySync(t.Context(), n.open(redirect.Config{}), want)
		expectError(t, err, "shop/", reason)
		checkGolden(t, "every.ipv4", n.table("iptables-save -t nat")+n.table("iptables-save -t filter"))
	}
	longest := "shop/" + strings.Repeat("x", 250)
	n := newNode(t)
	n.sync(n.open(redirect.Config{}), rules(binding(longest, service.TCP, service.ClusterIP, "10.96.0.66", 80, 41000)))
	if countLines(n.saved(), `"`+longest+`"`) != 2 {
		t.Error("the longest name was not written")
	}
}

func TestMissingProgramOrPrivilegeIsOneClearLine(t *testing.T) {
	open := func(n *node) error {
		return n.Do(func() error {
			_, err := redirect.NewIPTables(t.Context(), redirect.Config{})
			return err
		})
	}
	t.Run("program", func(t *testing.T) {
		p := choose(t, "nft")
		if err := os.Remove(filepath.Join(p.dir, "iptables-restore")); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", p.dir)
		expectError(t, open(newNode(t)), "iptables", "iptables-restore", "install")
	})
	t.Run("privilege", func(t *testing.T) {
		forEachBackend(t, func(t *testing.T, p *programs) {
			p.wrap("iptables-save", `exec setpriv --bounding-set -all --inh-caps -all $REAL "$@"`)
			watch := lab.StartStopwatch()
			expectError(t, open(newNode(t)), "iptables", "run as root", "CAP_NET_ADMIN")
			if took := watch.Elapsed(); took > 3*time.Second {
				t.Errorf("a want of privilege was tried again, for %v", took)
			}
		})
	})
}

func TestUnreadableNodePortAddressIsOneClearLine(t *testing.T) {
	for entry, example := range map[string]string{
		"10.0.0.0/33": "192.0.2.0/24", "172.20.1.2": "172.20.1.2/32", "fd00::1": "fd00::1/128",
		"::ffff:10.0.0.0/104": "192.0.2.0/24", "": "192.0.2.0/24", "Primary": "192.0.2.0/24",
	} {
		_, err := redirect.ParseNodePortAddresses([]string{"all", "10.0.0.0/8", entry})
		expectError(t, err, `"`+entry+`"`, example+",", "primary", "localhost", "all")
	}
}

func TestNodeWithoutIPv6(t *testing.T) {
	cases := map[string]func(t *testing.T, p *programs) error{
		"no programs": func(t *testing.T, p *programs) error {
			t.Setenv("PATH", p.dir)
			return os.Remove(filepath.Join(p.dir, "ip6tables-save"))
		},
		"no table": func(t *testing.T, p *programs) error {
			p.wrap("ip6tables-save", "echo \"can't initialize ip6tables table 'nat': Table does not exist\" >&2; exit 3")
			return nil
		},
	}
	for name, remove := range cases {
		t.Run(name, func(t *testing.T) {
			p := choose(t, "nft")
			if err := remove(t, p); err != nil {
				t.Fatal(err)
			}
			n := newNode(t)
			log := &journal{}
			r := n.open(redirect.Config{Log: log.logger()})
			only4 := rules(binding("shop/web", service.TCP, service.ClusterIP, "10.96.0.10", 80, 40001))
			n.sync(r, only4)
			n.sync(r, only4)
			if got := log.count("IPv6 is left out"); got != 1 {
				t.Errorf("IPv6 was mentioned %d times in the log, want 1", got)
			}
			n.sync(r, every())
			n.sync(r, every())
			if got := log.count("IPv6 addresses of Services are not served"); got != 1 {
				t.Errorf("that IPv6 Services are not served was said %d times, want 1", got)
			}
			if saved := n.table("iptables-save"); countLines(saved, "10.96.0.53/32") != 4 {
				t.Errorf("IPv4 rules are missing:\n%s", saved)
			}
		})
	}
}

func TestBusyIPv6ProgramsAreNoNodeWithoutIPv6(t *testing.T) {
	p := choose(t, "nft")
	n := newNode(t)
	log := &journal{}
	absent := "test -e $DIR/absent && { echo 'Table does not exist' >&2; exit 3; }\n"
	busy := "test -e $DIR/busy && exit 4\n"
	p.wrap("ip6tables-save", absent+busy+`exec $REAL "$@"`)
	now := func(state string, is bool) {
		t.Helper()
		path := filepath.Join(p.dir, state)
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if is && os.WriteFile(path, nil, 0o600) != nil {
			t.Fatal("cannot write", path)
		}
	}
	now("absent", true)
	r := n.open(redirect.Config{Log: log.logger()})
	now("absent", false)
	now("busy", true)
	expectError(t, n.trySync(t.Context(), r, every()), "IPv6", "ip6tables-save", "exit status 4")
	if got := log.count("IPv6"); got != 0 {
		t.Errorf("IPv6 was given up %d times in the log", got)
	}
	now("busy", false)
	n.sync(r, every())
	if saved := n.table("ip6tables-save"); countLines(saved, "fd00:10:96::") == 0 {
		t.Errorf("no IPv6 rules:\n%s", saved)
	}
}
