package main

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kube-splice/kube-splice/lab"
)

// routing are the routing rules and routes of the node that are about our mark or table.
func (c *cluster) routing() string {
	c.t.Helper()
	var ours []string
	for _, family := range []string{"-4", "-6"} {
		for _, list := range []string{"rule", "route"} {
			arguments := []string{"ip", family, list}
			if list == "route" {
				arguments = append(arguments, "show", "table", "all", "type", "local")
			}
			for line := range strings.Lines(c.onNode(arguments...)) {
				if strings.Contains(line, "8192") {
					ours = append(ours, family+" "+strings.TrimSpace(line))
				}
			}
		}
	}
	slices.Sort(ours)
	return strings.Join(ours, "\n")
}

func TestWhatPreservesClientsIsRepairedAndRemoved(t *testing.T) {
	forEachBackend(t, func(c *cluster, p *programs) {
		p.addForeignRules()
		c.onNode("ip", "rule", "add", "fwmark", "0x1/0x1", "lookup", "100")
		foreign, rules := p.saved(), c.onNode("ip", "rule")
		c.serveAll(localPod)
		for i, family := range localCases {
			local := policyCase{internal: inCluster, external: exLocal, endpoints: "local"}
			c.apply(fmt.Sprintf("policy-%d", i), local.objects(1, family.addressing)...)
		}
		program := c.launch(p.setup(), "--iptables-sync-period", "1s")
		program.waitReady()
		routing := c.routing()
		if n := len(strings.Split(routing, "\n")); n != 4 {
			c.t.Fatalf("the routing is\n%s\nwant a rule and a route in each family", routing)
		}
		address := byIPv4.ways(1)["nodePort"]
		for _, damage := range []string{
			"ip rule del lookup 8192", "ip route flush table 8192", "ip -6 rule del lookup 8192",
			p.real("iptables") + " -t mangle -D PREROUTING 1", p.real("ip6tables") + " -t mangle -D OUTPUT 1",
		} {
			c.onNode(strings.Fields(damage)...)
			soonSeen(c.t, c.Outside, address, lab.OutsideIP)
			eventually(c.t, func() error {
				if now := c.routing(); now != routing {
					return fmt.Errorf("after %s the routing is\n%s\nwant\n%s", damage, now, routing)
				}
				return nil
			})
		}
		if status := program.kill(syscall.SIGTERM); status != exitOK {
			c.t.Errorf("exit status %d", status)
		}
		removed := fmt.Sprintf("removed the rules of kube-splice: IPv4 routing, IPv6 routing, IPv4 %[1]s, IPv6 %[1]s\n", p.backend)
		for _, want := range []string{removed, nothingRemoved} {
			if said, status := c.runToEnd(p.setup(), "cleanup"); said != want || status != 0 {
				c.t.Errorf("cleanup said %q and ended with status %d, want %q", said, status, want)
			}
			if now := p.saved(); now != foreign {
				c.t.Errorf("the rules are\n%s\nwant\n%s", now, foreign)
			}
			if left := c.routing(); left != "" || c.onNode("ip", "rule") != rules {
				c.t.Errorf("routing that is left:\n%s", left)
			}
		}
	})
}

// The kernel may lack what it takes. That is said, and everything else works.
func TestWithoutConntrackMarksServicesWorkAndClientsAreHidden(t *testing.T) {
	forEachBackend(t, func(c *cluster, p *programs) {
		p.wrap("iptables-restore", `text=$(cat); case "$text" in *CONNMARK*) echo "Extension CONNMARK revision 0 not supported, missing kernel module?" >&2; exit 4;; esac; printf '%s\n' "$text" | exec "$REAL" "$@"`)
		c.serveAll(localPod)
		local := policyCase{internal: inCluster, external: exLocal, endpoints: "local"}
		c.apply("policy", local.objects(1, byIPv4)...)
		program := c.launch(p.setup())
		program.waitReady()
		program.wantSeen(c.Outside, byIPv4.ways(1)["nodePort"], bridgeIP, hidden)
		check(c.t, wantSaid(program, "Endpoints cannot see clients' own addresses", 1))
	})
}
