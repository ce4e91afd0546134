package main

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// foreignRules are those of other programs, some of them like ours.
const foreignRules = `*mangle
:OTHERS - [0:0]
-A PREROUTING -p tcp -j OTHERS
-A OTHERS -m comment --comment "says \"KUBE-PORTALS-HOST\", and $HOME; 'x'" -j RETURN
COMMIT
*filter
:OTHERS - [0:0]
:KUBE-FIREWALL - [0:0]
-A INPUT -i lo -j ACCEPT
-A INPUT -j KUBE-FIREWALL
-A OTHERS -m comment --comment "-j KUBE-NODEPORT-NON-LOCAL" -j ACCEPT
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-PORTALS - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A PREROUTING -p tcp -m tcp --dport 9999 -j REDIRECT --to-ports 22
-A OUTPUT -j KUBE-PORTALS
-A OUTPUT -m comment --comment "not -j KUBE-PORTALS-HOST" -j RETURN
-A KUBE-PORTALS -m comment --comment "default/web:http" -j RETURN
COMMIT
`

func (p *programs) addForeignRules() {
	p.c.t.Helper()
	for _, name := range []string{"iptables-restore", "ip6tables-restore"} {
		p.c.onNode("sh", "-c", fmt.Sprintf("%s <<'END'\n%sEND", p.real(name), foreignRules))
	}
}

const nothingRemoved = "there were no rules of kube-splice\n"

func TestKilledFiveTimesAndCleanedUpTwiceLeavesForeignRulesAsTheyWere(t *testing.T) {
	forEachBackend(t, func(c *cluster, p *programs) {
		p.addForeignRules()
		foreign, foreignJumps := p.saved(), p.jumps()
		c.serveAll("pod-a")
		for i := range int32(5) {
			for _, name := range []string{"a", "b", "c"} {
				number := strings.Index("abc", name)
				c.apply(name, newService(name, fmt.Sprintf("10.96.0.1%d", number), nodePort(30080+int32(number)), port(80+i)),
					newSlice(name, []string{podA}))
			}
			program := c.launch(p.setup())
			program.waitReady()
			checkOneRuleSet(c, p, foreignJumps, 80+i)
			// The next one dies at some moment of writing this change.
			c.apply("a", newService("a", "10.96.0.10", nodePort(30090+i)))
			time.Sleep(time.Duration(i) * 60 * time.Millisecond)
			program.kill(syscall.SIGKILL)
		}
		removed := fmt.Sprintf("removed the rules of kube-splice: IPv4 %[1]s, IPv6 %[1]s\n", p.backend)
		for _, again := range []struct{ command, want string }{{"cleanup", removed}, {"--cleanup", nothingRemoved}} {
			if said, status := c.runToEnd(p.setup(), again.command); said != again.want || status != 0 {
				c.t.Errorf("%s said %q and ended with status %d, want %q", again.command, said, status, again.want)
			}
			if now := p.saved(); now != foreign {
				c.t.Fatalf("after %s the rules are\n%s\nwant\n%s", again.command, now, foreign)
			}
		}
	})
}

// checkOneRuleSet demands every jump and every portal of the three Services once.
func checkOneRuleSet(c *cluster, p *programs, foreignJumps []string, number int32) {
	c.t.Helper()
	jumps := slices.DeleteFunc(p.jumps(), func(l string) bool { return slices.Contains(foreignJumps, l) })
	if each := count(jumps); len(jumps) != 10 || len(each) > 10 {
		c.t.Errorf("jumps into our chains are %v, want the 5 of each family", jumps)
	}
	for line, n := range count(p.ours()) {
		if n != 1 && !strings.Contains(line, "-j RETURN") { // in both families
			c.t.Errorf("there %d times: %s", n, line)
		}
	}
	want := []string{":30080", ":30081", ":30082"}
	for i := range 3 {
		want = append(want, fmt.Sprintf("10.96.0.1%d:%d", i, number))
	}
	if err := p.wantPortals(want...); err != nil {
		c.t.Error(err)
	}
	if err := answeredBy(c, fmt.Sprintf("10.96.0.12:%d", number), "pod-a"); err != nil {
		c.t.Error(err)
	}
}

func count(lines []string) map[string]int {
	n := map[string]int{}
	for _, line := range lines {
		n[line]++
	}
	return n
}

func TestCleanupWithoutRulesSaysSoAndMakesNone(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	before := c.onNode("iptables-save") + c.onNode("iptables-legacy-save")
	if said, status := c.runToEnd("", "cleanup"); said != nothingRemoved || status != 0 {
		t.Errorf("cleanup said %q and ended with status %d", said, status)
	}
	if now := c.onNode("iptables-save") + c.onNode("iptables-legacy-save"); now != before {
		t.Errorf("rules are now\n%s\nwere\n%s", now, before)
	}
}

func TestLeftoversInTheOtherKernelInterfaceAreRemoved(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.apply("web", newService("web", "10.96.0.10", nodePort(30080)), newSlice("web", []string{podA}))
	both := []*programs{c.programs("nft"), c.programs("legacy"), c.programs("nft")}
	for i, p := range both {
		program := c.launch(p.setup())
		program.waitReady()
		if len(p.ours()) == 0 {
			t.Fatalf("%s: no rules of ours", p.backend)
		}
		if said := program.said.text(); !strings.Contains(said, `redirect="iptables (`+p.backend+`)"`) {
			t.Errorf("the kernel interface in use is not said: %s", said)
		}
		for _, address := range []string{"10.96.0.10:80", "172.20.1.2:30080"} {
			if err := answeredBy(c, address, "pod-a"); err != nil {
				t.Errorf("%s: %v", p.backend, err)
			}
		}
		if i > 0 {
			if left := append(both[i-1].ours(), both[i-1].jumps()...); len(left) > 0 {
				t.Errorf("%s still has %v", both[i-1].backend, left)
			}
		}
		program.kill(syscall.SIGKILL)
	}
	if said, status := c.runToEnd("", "cleanup"); !strings.Contains(said, ": IPv4 nft, IPv6 nft\n") || status != 0 {
		t.Errorf("cleanup said %q and ended with status %d", said, status)
	}
	for _, p := range both {
		if left := append(p.ours(), p.jumps()...); len(left) > 0 {
			t.Errorf("after the cleanup %s still has %v", p.backend, left)
		}
	}
}

func TestCleanupUnderARunningProgramSaysThatItWritesItsRulesAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	p := c.start()
	said, status := c.runToEnd("", "cleanup")
	if status != exitOK || !strings.Contains(said, "removed the rules") || !strings.Contains(said, "stop it") {
		t.Errorf("cleanup said %q and ended with status %d, want what to do", said, status)
	}
	eventually(t, func() error { return answeredBy(c, webAddress, "pod-a") })
	p.finish(1)
	if said, _ := c.runToEnd("", "cleanup"); strings.Contains(said, "stop it") {
		t.Errorf("after the end of the program, cleanup said %q", said)
	}
}
