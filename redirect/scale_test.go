package redirect_test

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/kube-splice/kube-splice/lab"
	"github.com/kube-splice/kube-splice/redirect"
)

// insideUserNamespace tells the test program that it was started again, as root
// of a user namespace.
const insideUserNamespace = "REDIRECT_TEST_INSIDE_USER_NAMESPACE"

func TestManyRulesInAUserNamespace(t *testing.T) {
	if os.Getenv(insideUserNamespace) == "" {
		startAgainInUserNamespace(t)
		return
	}
	choose(t, "nft")
	n := newNode(t)
	log := &journal{}
	r := n.open(redirect.Config{Log: log.logger()})
	want := many(1500)
	n.sync(r, want)
	want.Bindings = want.Bindings[1:]
	n.sync(r, want)
	for i := range want.Bindings {
		b := &want.Bindings[i]
		b.Listener = netip.AddrPortFrom(b.Listener.Addr(), b.Listener.Port()+1)
	}
	n.sync(r, want)
	saved := n.table("iptables-save -t nat")
	if got := countLines(saved, "-A KUBE-PORTALS-(HOST|CONTAINER) -d"); got != 2*1499 {
		t.Errorf("%d rules, want %d", got, 2*1499)
	}
	if got := log.count("small transactions"); got != 1 {
		t.Errorf("the limit was logged %d times, want 1", got)
	}
	r = n.open(redirect.Config{Log: log.logger()})
	n.sync(r, want)
	if got := log.count("small transactions"); got != 1 {
		t.Error("rules in force were written again")
	}
}

func startAgainInUserNamespace(t *testing.T) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), insideUserNamespace+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in a user namespace: %v\n%s", err, out)
	}
}

// BenchmarkSyncUnchanged is the cost of finding that 10,000 Services are as they
// should be.
func BenchmarkSyncUnchanged(b *testing.B) {
	for _, backend := range []string{"nft", "legacy"} {
		b.Run(backend, func(b *testing.B) { benchmarkSync(b, backend, func(int, *redirect.Rules) {}) })
	}
}

// BenchmarkSyncOneService is the cost of adding one Service to 10,000.
func BenchmarkSyncOneService(b *testing.B) {
	for _, backend := range []string{"nft", "legacy"} {
		b.Run(backend, func(b *testing.B) {
			all := many(10001).Bindings
			benchmarkSync(b, backend, func(i int, want *redirect.Rules) { want.Bindings = all[i%2:] })
		})
	}
}

func benchmarkSync(b *testing.B, backend string, change func(i int, want *redirect.Rules)) {
	dir := b.TempDir()
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			path, err := exec.LookPath(name + "-" + backend + suffix)
			if err != nil {
				b.Fatal(err)
			}
			if err := os.Symlink(path, dir+"/"+name+suffix); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	space, err := lab.NewNamespace("node")
	if err != nil {
		b.Fatal(err)
	}
	defer space.Close()
	want := many(10000)
	if err := space.Do(func() error {
		ctx := context.Background()
		r, err := redirect.NewIPTables(ctx, redirect.Config{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		if err := r.Sync(ctx, want); err != nil {
			return err
		}
		for i := 0; b.Loop(); i++ {
			change(i, &want)
			if err := r.Sync(ctx, want); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}
