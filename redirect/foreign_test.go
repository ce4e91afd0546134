package redirect_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-splice/kube-splice/redirect"
)

func countLines(text, pattern string) int {
	n := 0
	expr := regexp.MustCompile(pattern)
	for line := range strings.Lines(text) {
		if expr.MatchString(strings.TrimSuffix(line, "\n")) {
			n++
		}
	}
	return n
}

// addForeign adds rules of other programs, in every table that ours go to, and
// returns all rules.
func addForeign(n *node) string {
	n.t.Helper()
	for _, program := range []string{"iptables", "ip6tables"} {
		for _, args := range []string{
			"-t nat -N THEIR-CHAIN",
			"-t nat -A PREROUTING -p tcp --dport 8080 -m comment --comment their\"s -j THEIR-CHAIN",
			"-t nat -A THEIR-CHAIN -p tcp -m tcp --dport 8080 -j REDIRECT --to-ports 80",
			"-t nat -A POSTROUTING -o eth0 -j MASQUERADE",
			"-t mangle -A FORWARD -p tcp -j MARK --set-mark 7",
			"-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT",
			"-A INPUT -m comment --comment KUBE-NODEPORT-NON-LOCAL -j DROP",
			"-P FORWARD DROP",
		} {
			n.run(program + " " + args)
		}
	}
	return n.saved()
}

func TestCleanupLeavesForeignRulesAsTheyWere(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		n := newNode(t)
		before := addForeign(n)
		n.sync(n.open(redirect.Config{NodePortAddresses: nodePorts(t, "192.0.2.0/24", "10.0.0.0/8")}), every())
		n.run("iptables -t nat -A OUTPUT -j KUBE-PORTALS-HOST")
		n.run("iptables -t nat -A THEIR-CHAIN -j KUBE-PORTALS-HOST")
		if n.saved() == before {
			t.Fatal("no rules were written")
		}
		for range 2 {
			n.cleanup()
			if got := n.saved(); got != before {
				t.Errorf("after cleanup:\n%s\nbefore:\n%s", got, before)
			}
		}
	})
}

func TestCleanupOfBothInterfacesAtOnce(t *testing.T) {
	n := newNode(t)
	for _, backend := range []string{"legacy", "nft"} {
		choose(t, backend)
		n.run("iptables -t nat -N KUBE-PORTALS-HOST")
		n.run("iptables -t nat -A OUTPUT -j KUBE-PORTALS-HOST")
		n.run("ip6tables -N KUBE-NODEPORT-NON-LOCAL")
	}
	from := n.cleanup()
	slices.Sort(from)
	if want := []string{"IPv4 legacy", "IPv4 nft", "IPv6 legacy", "IPv6 nft"}; !slices.Equal(from, want) {
		t.Errorf("removed from %q, want %q", from, want)
	}
	for _, backend := range []string{"legacy", "nft"} {
		choose(t, backend)
		if saved := n.saved(); strings.Contains(saved, "KUBE-") {
			t.Errorf("left in %s:\n%s", backend, saved)
		}
	}
}

func TestCleanupWithoutProgramsOrRules(t *testing.T) {
	p := choose(t, "nft")
	n := newNode(t)
	if from := n.cleanup(); len(from) > 0 {
		t.Errorf("removed from %q, where nothing was", from)
	}
	if saved := n.saved(); saved != "" {
		t.Errorf("cleanup of nothing made\n%s", saved)
	}
	if err := os.Remove(filepath.Join(p.dir, "ip6tables")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", p.dir)
	n.cleanup()
	t.Setenv("PATH", t.TempDir())
	err := n.Do(func() error {
		_, err := redirect.Cleanup(t.Context(), redirect.Config{})
		return err
	})
	expectError(t, err, "no iptables program")
}

func TestSyncLeavesForeignRulesAlone(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		n := newNode(t)
		before := addForeign(n)
		r := n.open(redirect.Config{})
		n.sync(r, every())
		n.sync(r, rules())
		ours := regexp.MustCompile(`(?m)^(:KUBE-|-A .*-j KUBE-|-A KUBE-).*\n`)
		if got := ours.ReplaceAllString(n.saved(), ""); got != before {
			t.Errorf("with our lines taken out:\n%s\nbefore:\n%s", got, before)
		}
	})
}

func TestOldRulesInTheOtherInterfaceAreRemoved(t *testing.T) {
	for old, now := range map[string]string{"nft": "legacy", "legacy": "nft"} {
		t.Run(old+" to "+now, func(t *testing.T) {
			n := newNode(t)
			choose(t, old)
			before := addForeign(n)
			n.sync(n.open(redirect.Config{}), every())

			choose(t, now)
			log := &journal{}
			r := n.open(redirect.Config{Log: log.logger()})
			if r.Backend() != now {
				t.Fatalf("backend %s, want %s", r.Backend(), now)
			}
			n.sync(r, every())
			n.sync(r, every())
			if got := log.count("Removed old rules"); got != 1 {
				t.Errorf("the removal was logged %d times, want 1", got)
			}
			if saved := n.saved(); countLines(saved, "-j KUBE-PORTALS-HOST") != 2 {
				t.Errorf("the new rules are not in force:\n%s", saved)
			}
			choose(t, old)
			if got := n.saved(); got != before {
				t.Errorf("after:\n%s\nbefore:\n%s", got, before)
			}
		})
	}
}

func TestKubeletChainsDecideTheInterface(t *testing.T) {
	hint := func(n *node, backend, chain string) {
		n.run("iptables-" + backend + " -t mangle -N " + chain)
	}
	cases := []struct {
		name string
		make func(n *node)
		want string // with plain programs of nft
	}{
		{"none", func(*node) {}, "nft"},
		{"in the other", func(n *node) { hint(n, "legacy", "KUBE-IPTABLES-HINT") }, "legacy"},
		{"canary in the other", func(n *node) { hint(n, "legacy", "KUBE-KUBELET-CANARY") }, "legacy"},
		{"in both", func(n *node) {
			hint(n, "legacy", "KUBE-IPTABLES-HINT")
			hint(n, "nft", "KUBE-IPTABLES-HINT")
		}, "nft"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			choose(t, "nft")
			n := newNode(t)
			c.make(n)
			r := n.open(redirect.Config{})
			if got := r.Backend(); got != c.want {
				t.Errorf("backend %s, want %s", got, c.want)
			}
			n.sync(r, every())
			if saved := n.run("iptables-" + c.want + "-save -t nat"); !strings.Contains(saved, ":KUBE-PORTALS-HOST") {
				t.Errorf("no rules in %s:\n%s", c.want, saved)
			}
		})
	}
}

func TestLookingForHintsMakesNoLegacyTables(t *testing.T) {
	choose(t, "nft")
	n := newNode(t)
	n.sync(n.open(redirect.Config{}), every())
	n.cleanup()
	if tables := n.run("cat /proc/thread-self/net/ip_tables_names"); tables != "" {
		t.Errorf("legacy tables were made: %s", tables)
	}
}
