package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/kube-splice/kube-splice/lab"
)

// setOf returns capabilities as /proc/PID/status has them.
func setOf(values ...cap.Value) (set uint64) {
	for _, v := range values {
		set |= 1 << v
	}
	return set
}

var statusLine = regexp.MustCompile(`(?m)^(Cap...|NoNewPrivs):\t(\w+)$`)

// wantPrivileges demands that a /proc/PID/status has exactly these capabilities in every
// set, at most those and more in the bounding set, and no way to get others.
func wantPrivileges(text string, kept, bound uint64) error {
	lines := statusLine.FindAllStringSubmatch(text, -1)
	if len(lines) != 6 {
		return fmt.Errorf("no status of a process: %q", text)
	}
	for _, line := range lines {
		want, name := kept, line[1]
		switch got, err := strconv.ParseUint(line[2], 16, 64); {
		case err != nil:
			return err
		case name == "NoNewPrivs":
			want = 1
			fallthrough
		case name != "CapBnd":
			if got != want {
				return fmt.Errorf("%s is %x, want %x", name, got, want)
			}
		case got&^(kept|bound) != 0:
			return fmt.Errorf("CapBnd is %x, want no more than %x", got, kept|bound)
		}
	}
	return nil
}

// wantPrivileges demands that every thread of the program has exactly these
// capabilities, and no more than they and those of bound in the bounding set.
func (p *program) wantPrivileges(kept, bound uint64) {
	p.t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.cmd.Process.Pid))
	check(p.t, err)
	seen := 0
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if err != nil {
			continue // it has ended
		}
		seen++
		if err := wantPrivileges(string(text), kept, bound); err != nil {
			p.t.Errorf("%s: %v", thread, err)
		}
	}
	if seen < 3 {
		p.t.Errorf("only %d threads were seen", seen)
	}
}

// everything is a bounding set that was left alone.
const everything = ^uint64(0)

// below1024 is a portal on an address of the node: it is to be held there.
const below1024 = lab.NodeSecondIP + ":80"

// wantEverythingServed demands that what takes a privilege works, at the start and when
// it comes later.
func wantEverythingServed(c *cluster) {
	c.t.Helper()
	c.serveAll("pod-a")
	c.serveUDPAll("pod-a")
	c.apply("web", newService("web", "10.96.0.10", nodePort(30080)), newSlice("web", []string{podA}))
	soon(c.t, c.Outside, webAddress, "pod-a")
	c.publishUDP(podA)
	eventually(c.t, func() error { return answeredOn(udpClient(c.t, c.Outside, udpAddress), "pod-a") })
	c.apply("web", newService("web", "10.96.0.11", nodePort(30081), externalIPs(lab.NodeSecondIP)), newSlice("web", []string{podA}))
	soon(c.t, c.Outside, "10.96.0.11:80", "pod-a")
	for _, address := range []string{lab.NodeIP + ":30081", below1024} {
		wantAnswer(c.t, c.Outside, address, "pod-a")
	}
	if _, err := c.Node.Listen("tcp", below1024); err == nil {
		c.t.Errorf("%s is not held", below1024)
	}
	wantPage(c.t, c.Outside, "http://"+lab.NodeIP+":10256/healthz", 200, `"healthy":true`)
}

// noted is a wrapping of a program that notes what its children may do.
const noted = `cat /proc/self/status >>$DIR/status; exec $REAL "$@"`

func TestRunningProgramKeepsOnlyTheCapabilitiesItNeeds(t *testing.T) {
	forEachBackend(t, func(c *cluster, programs *programs) {
		kept, bound := setOf(cap.NET_ADMIN, cap.NET_BIND_SERVICE), setOf(cap.NET_RAW)
		if programs.backend == "legacy" {
			kept |= bound
		}
		p := c.launch(programs.setup(), "-v", "4")
		p.waitReady()
		p.wantPrivileges(kept, bound)
		programs.wrap("iptables-restore", noted)
		wantEverythingServed(c)
		p.wantPrivileges(kept, bound)
		if err := wantPrivileges(lastStatus(programs.note("status")), kept, bound); err != nil {
			c.t.Errorf("iptables-restore: %v", err)
		}
		for _, line := range []string{"level=WARN", "level=ERROR"} {
			if err := wantSaid(p, line, 0); err != nil {
				c.t.Error(err)
			}
		}
		if status := p.kill(syscall.SIGTERM); status != exitOK {
			c.t.Errorf("status %d after SIGTERM", status)
		}
		if said, status := c.runToEnd(programs.setup(), "cleanup"); status != exitOK || len(programs.ours()) > 0 {
			c.t.Errorf("cleanup ended with %d and left %v: %s", status, programs.ours(), said)
		}
	})
}

// lastStatus returns the last of several /proc/PID/status.
func lastStatus(all string) string { return all[max(0, strings.LastIndex(all, "Name:")):] }

func TestWithoutRulesNoCapabilityIsKept(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		kept uint64
	}{
		"ports above 1023": {nil, 0},
		"health below":     {words("--healthz-bind-address 0.0.0.0:81"), setOf(cap.NET_BIND_SERVICE)},
		"metrics below":    {words("--metrics-bind-address 127.0.0.1:82"), setOf(cap.NET_BIND_SERVICE)},
		"listeners below":  {words("--proxy-port-range 83"), setOf(cap.NET_BIND_SERVICE)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.small()
			p := c.start(append(words("--redirect none --proxy-port-range 42000"), test.args...)...)
			p.wantPrivileges(test.kept, 0)
			for _, port := range words("42000 81 82 83") {
				if wanted := port == "42000" && name != "listeners below"; wanted || strings.Contains(strings.Join(test.args, " ")+".", port+".") {
					conn, err := c.Node.Dial("tcp", "127.0.0.1:"+port, patience)
					check(t, err)
					check(t, conn.Close())
				}
			}
			if err := wantSaid(p, "level=WARN", 0); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAnotherUserServesWithTheCapabilitiesOfTheUnit(t *testing.T) {
	unit := readUnit(t)
	forEachBackend(t, func(c *cluster, programs *programs) {
		p := c.byNobody(programs)
		for _, v := range capabilitiesNamed(t, unit["AmbientCapabilities"][0]) {
			p.cmd.SysProcAttr.AmbientCaps = append(p.cmd.SysProcAttr.AmbientCaps, uintptr(v))
		}
		c.wantServedByNobody(p, programs)

		cleanup := asNobody(c.t, "cleanup")
		cleanup.SysProcAttr.AmbientCaps = p.cmd.SysProcAttr.AmbientCaps
		cleanup.Env = slices.Clone(p.cmd.Env)
		said, status := toEnd(c.t, cleanup, c.Node.Start)
		if left := programs.ours(); status != exitOK || len(left) > 0 {
			c.t.Errorf("cleanup ended with %d and left %v: %s", status, left, said)
		}
	})
}

var setcap = regexp.MustCompile(`(?m)setcap (\S+)=p /usr/local/bin/kube-splice`)

// None is in effect at the start, and the kernel hands none on.
func TestAnotherUserServesWithTheCapabilitiesOfTheImage(t *testing.T) {
	image, err := os.ReadFile("../../Dockerfile")
	check(t, err)
	given := setcap.FindSubmatch(image)
	if given == nil || !strings.Contains(string(image), "\nUSER 65532") {
		t.Fatal("the image gives another user no capabilities")
	}
	forEachBackend(t, func(c *cluster, programs *programs) {
		p := c.byNobody(programs)
		binary, err := os.ReadFile("/proc/self/exe")
		check(c.t, err)
		p.cmd.Path = filepath.Join(openFolder(c.t), "kube-splice")
		check(c.t, os.WriteFile(p.cmd.Path, binary, 0o755))
		set := cap.NewSet()
		check(c.t, set.SetFlag(cap.Permitted, true, capabilitiesNamed(c.t, strings.ReplaceAll(string(given[1]), ",", " "))...))
		check(c.t, set.SetFile(p.cmd.Path))
		c.wantServedByNobody(p, programs)
	})
}

// capabilitiesNamed reads names that are separated by blanks.
func capabilitiesNamed(t testing.TB, names string) (all []cap.Value) {
	t.Helper()
	for _, name := range words(strings.ToLower(names)) {
		v, err := cap.FromName(name)
		check(t, err)
		all = append(all, v)
	}
	return all
}

// byNobody prepares the program as run by a user without privileges, from a folder of
// manifests that this user can read. The lock of legacy iptables is root's, as on a node.
func (c *cluster) byNobody(programs *programs) *program {
	c.t.Helper()
	c.manifests = openFolder(c.t)
	check(c.t, os.Chmod(filepath.Dir(programs.dir), 0o755))
	check(c.t, os.WriteFile(programs.lock(), nil, 0o600))
	p := &program{
		t: c.t, cmd: asNobody(c.t, words("--hostname-override node -v 4 --manifests "+c.manifests)...),
		said: watchedOutput{word: "msg=ready", found: make(chan struct{})}, exited: make(chan struct{}),
	}
	p.cmd.Env = append(os.Environ(), asProgram+"=1", "PATH="+programs.dir+":"+os.Getenv("PATH"), "XTABLES_LOCKFILE="+programs.lock())
	p.cmd.Stderr = &p.said
	return p
}

func (c *cluster) wantServedByNobody(p *program, programs *programs) {
	c.t.Helper()
	kept := setOf(cap.NET_ADMIN, cap.NET_BIND_SERVICE)
	if programs.backend == "legacy" {
		kept |= setOf(cap.NET_RAW, cap.DAC_READ_SEARCH)
	}
	c.run(p)
	p.waitReady()
	p.wantPrivileges(kept, everything)
	wantEverythingServed(c)
	p.wantPrivileges(kept, everything)
	for _, line := range []string{"level=WARN", "level=ERROR"} {
		if err := wantSaid(p, line, 0); err != nil {
			c.t.Error(err)
		}
	}
	if status := p.kill(syscall.SIGTERM); status != exitOK {
		c.t.Errorf("status %d after SIGTERM", status)
	}
}

// giveAway makes files another user's, and closes them to all others.
func giveAway(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		check(t, os.Chmod(path, 0o700))
		if err := os.Chown(path, nobody, nobody); err != nil {
			t.Skip("only root can give files away; without root, only one's own files can be read anyway")
		}
	}
}

// Root is asked to serve what is in somebody's home.
func TestManifestsOfAnotherUserAreFollowed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	giveAway(t, c.manifests)
	p := c.launch("cd "+c.manifests, unlogged...) // where we are started does not matter
	p.waitReady()
	p.wantPrivileges(setOf(cap.NET_ADMIN, cap.NET_BIND_SERVICE, cap.DAC_READ_SEARCH), setOf(cap.NET_RAW))
	text := asText(t, newService("web", "10.96.0.11"), newSlice("web", []string{podA}))
	check(t, os.WriteFile(c.manifestPath("web"), []byte(text), 0o600))
	giveAway(t, c.manifestPath("web"))
	soon(t, c.Outside, "10.96.0.11:80", "pod-a")
}

// As logrotate leaves it: the new file is the log's owner's, or is not there yet.
func TestConnectionLogOfAnotherUserIsOpenedAnew(t *testing.T) {
	t.Parallel()
	for name, rotate := range map[string]func(t *testing.T, folder, log string){
		"file": func(t *testing.T, _, log string) {
			check(t, os.WriteFile(log, nil, 0o600))
			giveAway(t, log)
		},
		"folder": func(t *testing.T, folder, _ string) {
			giveAway(t, folder)
			check(t, os.Chmod(folder, 0o755))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.small()
			folder := t.TempDir()
			log := filepath.Join(folder, "connections.log")
			rotate(t, folder, log)
			p := c.start("--connection-log-file", log)
			p.log = log
			p.wantPrivileges(setOf(cap.NET_ADMIN, cap.NET_BIND_SERVICE, cap.DAC_OVERRIDE), setOf(cap.NET_RAW))
			check(t, os.Rename(log, log+".1"))
			rotate(t, folder, log)
			check(t, p.cmd.Process.Signal(syscall.SIGHUP))
			eventually(t, func() error {
				wantAnswer(t, c.Outside, webAddress, "pod-a")
				text, err := os.ReadFile(log)
				if err == nil && len(text) == 0 {
					err = errors.New("nothing is written to the new file")
				}
				return err
			})
		})
	}
}

// Securebits forbid to raise an ambient capability.
func TestPrivilegesThatCannotBeSetAreSaidOnceAndDoNotMatter(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.launch("export " + noAmbient + "=1")
	p.waitReady()
	wantEverythingServed(c)
	if err := wantSaid(p, "level=WARN", 1); err != nil {
		t.Error(err)
	}
	if err := wantSaid(p, "set ambient capabilities", 1); err != nil {
		t.Error(err)
	}
}

// The tests are built with cgo, for the race detector, and set capabilities in another
// way than the static program that people run.
func TestStaticProgramKeepsOnlyTheCapabilitiesItNeeds(t *testing.T) {
	t.Parallel()
	static := filepath.Join(t.TempDir(), "kube-splice")
	build := exec.Command("go", "build", "-trimpath", "-o", static, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	c := newCluster(t)
	p := c.prepare("")
	p.cmd.Args[3] = static // in the place of os.Args[0]
	c.run(p)
	p.waitReady()
	kept, bound := setOf(cap.NET_ADMIN, cap.NET_BIND_SERVICE), setOf(cap.NET_RAW)
	p.wantPrivileges(kept, bound)
	wantEverythingServed(c)
	p.wantPrivileges(kept, bound)
}

// A program that root starts could have the bounding set again.
func TestProgramsThatRootStartsGetNoMoreWhereTheBoundingSetStays(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	programs := c.programs("nft")
	programs.wrap("iptables-restore", noted)
	lowered := `[ -n "$LOCKED" ] || LOCKED=1 exec setpriv --bounding-set=-setpcap /bin/sh -c 'exec "$0" "$@"' "$0" "$@"`
	p := c.launch(programs.setup()+"\n"+lowered, "-v", "4")
	p.waitReady()
	wantEverythingServed(c)
	kept := setOf(cap.NET_ADMIN, cap.NET_BIND_SERVICE)
	p.wantPrivileges(kept, everything)
	if err := wantPrivileges(lastStatus(programs.note("status")), kept, everything); err != nil {
		t.Errorf("iptables-restore: %v", err)
	}
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid)); err != nil || wantPrivileges(string(text), kept, 0) == nil {
		t.Errorf("the bounding set was lowered, so this showed nothing (%v)", err)
	}
	if err := wantSaid(p, "level=WARN", 0); err != nil {
		t.Error(err)
	}
}
