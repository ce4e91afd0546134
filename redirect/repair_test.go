package redirect_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kube-splice/kube-splice/redirect"
	"github.com/kube-splice/kube-splice/service"
)

// countWrites lets every write of a later Sync be counted by writes.
func (p *programs) countWrites() {
	for _, name := range []string{"iptables", "ip6tables"} {
		p.wrap(name, `case " $* " in *" -I "*|*" -A "*|*" -D "*|*" -N "*|*" -F "*|*" -X "*) echo "$*" >>$DIR/writes;; esac; exec $REAL "$@"`)
		p.wrap(name+"-restore", `echo "$0" >>$DIR/writes; exec $REAL "$@"`)
	}
}

func (p *programs) writes() int { return strings.Count(p.note("writes"), "\n") }

func TestUnchangedStateWritesNothing(t *testing.T) {
	states := map[string]redirect.Rules{"every kind": every(), "policies": policies(), "no Service": rules()}
	forEachBackend(t, func(t *testing.T, p *programs) {
		p.countWrites()
		for name, want := range states {
			n := newNode(t)
			r := n.open(redirect.Config{})
			before := p.writes()
			n.sync(r, want)
			first := p.writes()
			if first == before {
				t.Fatal("the first Sync was not seen to write")
			}
			n.sync(r, want)
			n.sync(n.open(redirect.Config{}), want)
			if got := p.writes(); got != first {
				t.Errorf("%s: %d writes for a state already in force:\n%s", name, got-first, p.note("writes"))
			}
		}
	})
}

func TestOneChangedServiceIsOneTransaction(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		p.countWrites()
		n := newNode(t)
		r := n.open(redirect.Config{})
		n.sync(r, every())
		first := p.writes()
		changed := every()
		changed.Bindings[0].Listener = netip.AddrPortFrom(netip.IPv4Unspecified(), 41000)
		n.sync(r, changed)
		if got := p.writes() - first; got != 1 {
			t.Errorf("%d writes for a change in one family, want 1", got)
		}
		if saved := n.saved(); !strings.Contains(saved, `-d 10.96.0.10/32 -p tcp -m comment --comment "shop/web:http" -m tcp --dport 80 -j REDIRECT --to-ports 41000`) {
			t.Errorf("the new port is not in the rules:\n%s", saved)
		}
	})
}

func TestChangedServiceLeavesTheOthersCounters(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		n := newNode(t)
		r := n.open(redirect.Config{})
		n.sync(r, many(20))
		n.run("iptables -t nat -R KUBE-PORTALS-HOST 12 -c 7 700" + strings.TrimPrefix(ruleOf(n, 12), "-A KUBE-PORTALS-HOST"))
		want := many(22)
		want.Bindings = slices.Delete(want.Bindings, 3, 5)
		n.sync(r, want)
		if saved := n.run("iptables-save -c -t nat"); countLines(saved, `\[7:700\] -A KUBE-PORTALS-HOST -d 10.96.0.10/32`) != 1 {
			t.Errorf("the counters of an unchanged rule are lost:\n%s", saved)
		}
		edited := n.saved()
		n.run("iptables -t nat -F KUBE-PORTALS-HOST")
		n.run("iptables -t nat -F KUBE-PORTALS-CONTAINER")
		n.sync(r, want)
		if rewritten := n.saved(); edited != rewritten {
			t.Errorf("edited:\n%s\nwritten at once:\n%s", edited, rewritten)
		}
	})
}

// ruleOf returns a rule of KUBE-PORTALS-HOST, its comment without quotes.
func ruleOf(n *node, number int) string {
	lines := strings.Split(n.run("iptables -t nat -S KUBE-PORTALS-HOST"), "\n")
	return strings.ReplaceAll(lines[number], `"`, "")
}

// TestAnyChangeEndsInTheWantedRules edits rules at random and compares with the
// same rules written from nothing.
func TestAnyChangeEndsInTheWantedRules(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		random := rand.New(rand.NewPCG(1, 2))
		edited, fresh := newNode(t), newNode(t)
		r := edited.open(redirect.Config{})
		for range 15 {
			want := many(30)
			want.Bindings = slices.DeleteFunc(want.Bindings, func(service.Binding) bool { return random.IntN(3) == 0 })
			edited.sync(r, want)
			fresh.cleanup()
			fresh.sync(fresh.open(redirect.Config{}), want)
			if got, expected := edited.saved(), fresh.saved(); got != expected {
				t.Fatalf("edited:\n%s\nfrom nothing:\n%s", got, expected)
			}
		}
	})
}

const secondJump = `iptables -t nat -A PREROUTING -j KUBE-PORTALS-CONTAINER`

// damage is what another program, or a person, did to our rules.
type damage struct {
	name     string
	commands []string
	foreign  []string // lines that must still be there
	intact   bool     // the damage is in contents only
}

var damages = []damage{
	{name: "a lost line", commands: []string{"iptables -t nat -D KUBE-PORTALS-HOST 2"}, intact: true},
	{name: "an altered line", commands: []string{"iptables -t nat -R KUBE-PORTALS-CONTAINER 1 -d 10.96.0.9/32 -p tcp -m tcp --dport 8080 -j REDIRECT --to-ports 1"}, intact: true},
	{name: "a foreign line in our chain", commands: []string{"iptables -t nat -I KUBE-PORTALS-CONTAINER -j RETURN", "ip6tables -t nat -I KUBE-PORTALS-HOST -j RETURN"}, intact: true},
	{name: "a doubled line", commands: []string{"ip6tables -t nat -A KUBE-PORTALS-HOST -m mark --mark 0x2000/0x2000 -j RETURN"}, intact: true},
	{name: "lines out of order", commands: []string{"iptables -t nat -D KUBE-PORTALS-HOST 1", "iptables -t nat -A KUBE-PORTALS-HOST -m mark --mark 0x2000/0x2000 -j RETURN"}, intact: true},
	{name: "an emptied filter chain", commands: []string{"iptables -F KUBE-NODEPORT-NON-LOCAL"}, intact: true},
	{name: "a lost first jump", commands: []string{"iptables -t nat -D PREROUTING 1"}},
	{name: "a lost last jump", commands: []string{"ip6tables -t nat -D OUTPUT 2"}},
	{name: "a lost filter jump", commands: []string{"ip6tables -D INPUT 1"}},
	{name: "another jump to our chain", commands: []string{secondJump, secondJump}},
	{name: "a doubled jump between ours", commands: []string{"iptables -t nat -I OUTPUT 2 -j KUBE-PORTALS-HOST"}},
	{name: "a jump to the wrong chain of ours", commands: []string{"iptables -t nat -I OUTPUT -j KUBE-NODEPORT-CONTAINER"}},
	{name: "a foreign rule before the first jump", commands: []string{"iptables -t nat -I PREROUTING -s 1.1.1.1 -j ACCEPT", "iptables -I INPUT -s 1.1.1.1 -j ACCEPT"},
		foreign: []string{"-A PREROUTING -s 1.1.1.1/32 -j ACCEPT", "-A INPUT -s 1.1.1.1/32 -j ACCEPT"}},
	{name: "a foreign rule after the last jump", commands: []string{"iptables -t nat -A OUTPUT -s 1.1.1.1 -j ACCEPT"},
		foreign: []string{"-A OUTPUT -s 1.1.1.1/32 -j ACCEPT"}},
	{name: "a flush and removal of nat", commands: []string{"iptables -t nat -F", "iptables -t nat -X"}},
	{name: "a flush and removal of filter", commands: []string{"ip6tables -F", "ip6tables -X"}},
}

func TestSyncPutsRight(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		n := newNode(t)
		r := n.open(redirect.Config{})
		n.sync(r, every())
		want := n.saved()
		for _, c := range damages {
			t.Run(c.name, func(t *testing.T) {
				for _, command := range c.commands {
					n.run(command)
				}
				if n.saved() == want {
					t.Fatal("the damage did nothing")
				}
				if got := n.intact(r); got != c.intact {
					t.Errorf("Intact = %v, want %v", got, c.intact)
				}
				n.sync(r, every())
				if !n.intact(r) {
					t.Error("not intact after Sync")
				}
				got := n.saved()
				for _, line := range c.foreign {
					if !strings.Contains(got, line+"\n") {
						t.Errorf("foreign rule lost: %s", line)
					}
					got = strings.Replace(got, line+"\n", "", 1)
					n.run("iptables " + tableOf(line) + strings.Replace(line, "-A ", "-D ", 1))
				}
				if got != want {
					t.Errorf("not repaired, got:\n%s\nwant:\n%s", got, want)
				}
				checkPlaces(t, n)
			})
		}
	})
}

func tableOf(line string) string {
	if strings.HasPrefix(line, "-A INPUT ") {
		return "-t filter "
	}
	return "-t nat "
}

// checkPlaces makes sure that our jumps are first and last among all.
func checkPlaces(t *testing.T, n *node) {
	t.Helper()
	for _, chain := range []string{"PREROUTING", "OUTPUT"} {
		lines := strings.Split(strings.TrimSpace(n.run("iptables -t nat -S "+chain)), "\n")[1:]
		if !strings.Contains(lines[0], "-j KUBE-PORTALS-") {
			t.Errorf("first rule of %s is %s", chain, lines[0])
		}
		if last := lines[len(lines)-1]; !strings.Contains(last, "-j KUBE-NODEPORT-") {
			t.Errorf("last rule of %s is %s", chain, last)
		}
	}
}

func TestIntactBeforeTheFirstSync(t *testing.T) {
	choose(t, "nft")
	n := newNode(t)
	if !n.intact(n.open(redirect.Config{})) {
		t.Error("something is missed that never was")
	}
}

func TestIntactSeesThatTheNodesAddressChanged(t *testing.T) {
	choose(t, "nft")
	for family, addr := range map[string]netip.Addr{"IPv4": nodeIP, "IPv6": nodeIPv6} {
		n := newNode(t)
		r := n.open(redirect.Config{})
		n.sync(r, every())
		n.addAddress(addr.Next())
		n.removeAddress(addr)
		if n.intact(r) {
			t.Errorf("%s: intact, although the node lost the address that rules lead to", family)
		}
		n.sync(r, every())
		if !n.intact(r) {
			t.Errorf("%s: not intact after Sync", family)
		}
	}
}

func TestRestartsLeaveEachJumpOnce(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		n := newNode(t)
		for i := range 5 {
			changed := every()
			changed.Bindings[0].Portal.Number += uint16(i)
			n.sync(n.open(redirect.Config{}), changed)
		}
		saved := n.table("iptables-save")
		for _, jump := range []string{"PREROUTING .*KUBE-PORTALS-CONTAINER", "OUTPUT .*KUBE-PORTALS-HOST",
			"PREROUTING .*KUBE-NODEPORT-CONTAINER", "OUTPUT .*KUBE-NODEPORT-HOST", "INPUT .*KUBE-NODEPORT-NON-LOCAL"} {
			if got := countLines(saved, jump); got != 1 {
				t.Errorf("%d jumps %s, want 1:\n%s", got, jump, saved)
			}
		}
		if got := countLines(saved, `-d 10.96.0.10/32 `); got != 2 {
			t.Errorf("%d rules of a clusterIP port, want 2:\n%s", got, saved)
		}
	})
}

func TestTwoServicesSwapTheirNodePorts(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		n := newNode(t)
		r := n.open(redirect.Config{})
		n.sync(r, rules(
			binding("shop/a", service.TCP, service.NodePort, "", 30080, 40001),
			binding("shop/b", service.TCP, service.NodePort, "", 30081, 40002)))
		n.sync(r, rules(
			binding("shop/a", service.TCP, service.NodePort, "", 30081, 40001),
			binding("shop/b", service.TCP, service.NodePort, "", 30080, 40002)))
		saved := n.saved()
		for _, want := range []string{`"shop/a" -m tcp --dport 30081 -j REDIRECT --to-ports 40001`, `"shop/b" -m tcp --dport 30080 -j REDIRECT --to-ports 40002`} {
			if countLines(saved, want) != 1 {
				t.Errorf("no rule %s in\n%s", want, saved)
			}
		}
	})
}

func TestRemovedServiceLeavesNoTrace(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		n := newNode(t)
		r := n.open(redirect.Config{})
		n.sync(r, rules())
		empty := n.saved()
		n.sync(r, every())
		n.sync(r, rules())
		// Connections that outlive the Service are still tracked, and that is all.
		const tracking = "-A KUBE-NODEPORT-NON-LOCAL -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN\n"
		got := n.saved()
		if n := strings.Count(got, tracking); n != 2 {
			t.Errorf("connections are tracked by %d rules, want one a family", n)
		}
		if got = strings.ReplaceAll(got, tracking, ""); got != empty {
			t.Errorf("left behind:\n%s\nwant:\n%s", got, empty)
		}
	})
}

// The rules of an earlier version left an externalIP to the machine that has it.
func TestRulesOfAnEarlierVersionAreReplaced(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		n := newNode(t)
		write := func() string {
			n.sync(n.open(redirect.Config{}), every())
			return n.saved()
		}
		want := write()
		age := func() {
			for _, old := range []struct {
				program, addr string
				listener      int
			}{{"iptables", "203.0.113.9", 40001}, {"ip6tables", "2001:db8:2::9", 40005}} {
				for _, edit := range []string{"-D %s", "-A %s -m physdev ! --physdev-is-in", "-A %s -m addrtype --dst-type LOCAL"} {
					rule := "KUBE-PORTALS-CONTAINER -d " + old.addr + " -p tcp -m comment --comment shop/web:http -m tcp --dport 80"
					n.run(fmt.Sprintf("%s -t nat "+edit+" -j REDIRECT --to-ports %d", old.program, rule, old.listener))
				}
			}
		}
		age()
		if got := write(); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
		age()
		n.cleanup()
		if saved := n.saved(); countLines(saved, "KUBE-") > 0 {
			t.Errorf("after cleanup:\n%s", saved)
		}
	})
}
