package redirect_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/kube-splice/kube-splice/redirect"
	"github.com/kube-splice/kube-splice/service"
)

// written returns how many commands on rules the last Sync gave, by table, filter of
// IPv4, nat of IPv4, filter of IPv6, nat of IPv6.
func written(r *redirect.IPTables) (lines [4]int) {
	for i, c := range r.Counts() {
		lines[i] = c.Written
	}
	return lines
}

func TestCountsOfRules(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		n := newNode(t)
		r := n.open(redirect.Config{})
		if got := r.Counts(); len(got) != 0 {
			t.Errorf("rules are counted before any was written: %v", got)
		}
		check := func() (total [4]int) {
			t.Helper()
			counts := r.Counts()
			if len(counts) != 4 {
				t.Fatalf("got %v, want two tables of two families", counts)
			}
			for i, c := range counts {
				program := map[service.Family]string{service.IPv4: "iptables-save", service.IPv6: "ip6tables-save"}[c.Family]
				if there := countLines(n.table(program+" -t "+c.Table), "^-A (KUBE-|.* -j KUBE-)"); c.Total != there {
					t.Errorf("%s %s: %d rules counted, %d are there", c.Family, c.Table, c.Total, there)
				}
				total[i] = c.Total
			}
			return total
		}
		n.sync(r, policies())
		if total := check(); written(r) != total {
			t.Errorf("%v commands gave %v rules", written(r), total)
		}
		n.sync(r, policies())
		if got := written(r); got != [4]int{} {
			t.Errorf("%v commands for rules that are in force", got)
		}
		n.run("ip6tables -t nat -D PREROUTING 1")
		n.sync(r, policies())
		if got := written(r); got != [4]int{3: 1} {
			t.Errorf("%v commands for one lost jump", got)
		}
		n.sync(r, many(20))
		check()
		fewer := many(20)
		fewer.Bindings = fewer.Bindings[1:]
		n.sync(r, fewer)
		if got := written(r); got != [4]int{1: 2} {
			t.Errorf("%v commands for the removal of a Service with two rules", got)
		}
		check()
		n.run("iptables -t nat -F")
		n.sync(n.open(redirect.Config{}), rules())
	})
}

func TestChangedPodTrafficRewritesOnlyWhatDiffers(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		edited, fresh := newNode(t), newNode(t)
		r := edited.open(redirect.Config{})
		want := many(20)
		want.Bindings = append(want.Bindings, apart(binding("shop/web", service.TCP, service.LoadBalancer, "198.51.100.1", 80, 40001), 40002)...)
		steps := []struct {
			pods redirect.PodTraffic
			want [4]int
		}{
			{redirect.PodTraffic{}, [4]int{1: -1}},
			{redirect.PodTraffic{CIDRs: cidrs("10.244.1.0/24")}, [4]int{1: 1}},
			{redirect.PodTraffic{CIDRs: cidrs("10.244.2.0/24", "fd00:10:244::/56")}, [4]int{1: 2}},
			{redirect.PodTraffic{CIDRs: cidrs("10.244.2.0/24"), Interface: "cbr0"}, [4]int{1: 1}},
			{redirect.PodTraffic{}, [4]int{1: 2}},
		}
		for i, step := range steps {
			want.Pods = step.pods
			edited.sync(r, want)
			if got := written(r); i > 0 && got != step.want {
				t.Errorf("to %v: %v commands, want %v", step.pods, got, step.want)
			}
			fresh.cleanup()
			fresh.sync(fresh.open(redirect.Config{}), want)
			if got, expected := edited.saved(), fresh.saved(); got != expected {
				t.Fatalf("to %v, edited:\n%s\nfrom nothing:\n%s", step.pods, got, expected)
			}
		}
	})
}

// TestEveryWayToTellPodsReadsBackAsWritten would see rules written again.
func TestEveryWayToTellPodsReadsBackAsWritten(t *testing.T) {
	ways := []redirect.PodTraffic{
		{CIDRs: cidrs("0.0.0.0/0", "::/0")},
		{CIDRs: cidrs("10.244.3.7/16", "10.244.0.0/16", "fd00:10:244:1::7/56")},
		{CIDRs: cidrs("10.244.3.7/32", "::ffff:10.244.0.0/112", "fd00::1/128")},
		{CIDRs: slices.Concat(cidrs("10.0.0.0/8"), policies().Pods.CIDRs, policies().Pods.CIDRs[:0:0])},
	}
	for _, name := range []string{"a", "veth+", "br-1a2b3c4d5e6f", "eth0.100", "12345678901234+", "a#b", "$x"} {
		ways = append(ways, redirect.PodTraffic{Interface: name})
	}
	forEachBackend(t, func(t *testing.T, p *programs) {
		n := newNode(t)
		for _, pods := range ways {
			r := n.open(redirect.Config{})
			want := policies()
			want.Pods = pods
			n.sync(r, want)
			n.sync(r, want)
			if got := written(r); got != [4]int{} {
				t.Errorf("%v: %v commands for rules in force:\n%s", pods, got, n.saved())
			}
			lines := slices.Collect(strings.Lines(n.run("iptables -t nat -S KUBE-NODEPORT-CONTAINER")))
			if slices.Sort(lines); len(slices.Compact(slices.Clone(lines))) != len(lines) {
				t.Errorf("%v: a rule is there twice:\n%s", pods, lines)
			}
		}
	})
}

func TestInterfaceThatNoRuleCanCarryStopsNoRule(t *testing.T) {
	for _, name := range []string{"+", "1234567890123456", "a b", "a\nb", `a"`, "!a", "a/b", "-i", "ü"} {
		if err := (redirect.PodTraffic{Interface: name}).Check(); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want one line", name, err)
		}
	}
	if err := (redirect.PodTraffic{}).Check(); err != nil {
		t.Error(err)
	}
	choose(t, "nft")
	n := newNode(t)
	r := n.open(redirect.Config{})
	want := policies()
	want.Pods.Interface = "a name that is too long"
	err := n.trySync(t.Context(), r, want)
	expectError(t, err, "a name that is too long")
	want.Pods.Interface = ""
	n.sync(r, want)
	if got := written(r); got != [4]int{} {
		t.Errorf("%v commands were left to be given:\n%s", got, n.saved())
	}
}

func TestDamagedRulesOfPodsArePutRight(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		n := newNode(t)
		before := addForeign(n)
		r := n.open(redirect.Config{})
		n.sync(r, policies())
		want := n.saved()
		for _, commands := range [][]string{
			{"iptables -t nat -D KUBE-NODEPORT-CONTAINER 1"},
			{"ip6tables -t nat -D KUBE-PORTALS-CONTAINER 2"},
			{"iptables -t nat -R KUBE-NODEPORT-CONTAINER 1 -s 10.0.0.0/8 -p tcp -m tcp --dport 30080 -m comment --comment shop/web:http -j REDIRECT --to-ports 40001"},
			{"iptables -t nat -R KUBE-NODEPORT-CONTAINER 1 ! -s 10.244.0.0/16 -p tcp -m tcp --dport 30080 -m comment --comment shop/web:http -j REDIRECT --to-ports 40001"},
			{"iptables -t nat -D KUBE-NODEPORT-CONTAINER 3", // outside before inside
				"iptables -t nat -I KUBE-NODEPORT-CONTAINER -p tcp -m tcp --dport 30080 -j REDIRECT --to-ports 40002"},
			{"iptables -D KUBE-NODEPORT-NON-LOCAL 2"},
		} {
			for _, command := range commands {
				n.run(command)
			}
			if n.saved() == want {
				t.Errorf("%q did nothing", commands)
			}
			n.sync(r, policies())
			if got := n.saved(); got != want {
				t.Errorf("%q: not repaired, got:\n%s\nwant:\n%s", commands, got, want)
			}
		}
		n.cleanup()
		if got := n.saved(); got != before {
			t.Errorf("after cleanup:\n%s\nbefore:\n%s", got, before)
		}
	})
}

func TestRulesAreEqualWhenNothingDiffers(t *testing.T) {
	changes := map[string]func(*redirect.Rules){
		"a listener":      func(r *redirect.Rules) { r.Bindings[0].Listener = r.Bindings[1].Listener },
		"clients":         func(r *redirect.Rules) { r.Bindings[1].Portal.Clients = service.Anyone },
		"a lost binding":  func(r *redirect.Rules) { r.Bindings = r.Bindings[1:] },
		"a node's IP":     func(r *redirect.Rules) { r.NodeIPs = append(r.NodeIPs, nodeIP) },
		"pods' addresses": func(r *redirect.Rules) { r.Pods.CIDRs[1] = r.Pods.CIDRs[0] },
		"their interface": func(r *redirect.Rules) { r.Pods.Interface = "cbr0" },
	}
	for name, change := range changes {
		changed := policies()
		if !changed.Equal(policies()) {
			t.Fatal("rules are not equal to themselves")
		}
		change(&changed)
		if changed.Equal(policies()) || policies().Equal(changed) {
			t.Errorf("%s goes unnoticed", name)
		}
	}
}
