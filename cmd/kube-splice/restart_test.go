package main

import (
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

// counted are the rules into and in our chains with how many packets each has
// taken. A rule that is written again starts at zero.
func (p *programs) counted() map[string]int {
	p.c.t.Helper()
	packets := map[string]int{}
	for _, name := range []string{"iptables-save", "ip6tables-save"} {
		for _, found := range countedRule.FindAllStringSubmatch(p.run(name+" -c"), -1) {
			n, err := strconv.Atoi(found[1])
			check(p.c.t, err)
			packets[name+" "+found[2]] = n
		}
	}
	return packets
}

var countedRule = regexp.MustCompile(`(?m)^\[(\d+):\d+\] (-A .*KUBE-.*)$`)

func TestRestartRewritesNoRule(t *testing.T) {
	forEachBackend(t, func(c *cluster, p *programs) {
		c.serveAll("pod-a")
		c.apply("web", newService("web", "10.96.0.10", everyWayIn, withIPv6("fd00:10:96::10")),
			newSlice("web", []string{podA}), newSlice("web", []string{podA6}, ipv6))
		for _, name := range []string{"b", "c", "d"} {
			c.apply(name, newService(name, "10.96.1."+strconv.Itoa(int(name[0]))), newSlice(name, []string{podA}))
		}
		const hasty = "--drain-timeout=100ms"
		program := c.launch(p.setup(), hasty)
		program.waitReady()
		for _, from := range []*lab.Namespace{c.Outside, c.Pod("client").Namespace, c.Node} {
			for _, address := range append(waysIn, "[fd00:10:96::10]:80", "10.96.1.98:80", "10.96.1.99:80", "10.96.1.100:80") {
				if from != c.Outside && address == "10.96.0.60:80" {
					continue // no pod and no node is led to an externalIP that is somewhere else
				}
				if _, err := ask(from, address); err != nil {
					c.t.Errorf("%s asks %s: %v", from.Name, address, err)
				}
			}
		}
		// Its connection ends with the program and leaves the listener's port in use.
		held, err := c.Outside.Dial("tcp", waysIn[0], time.Second)
		check(c.t, err)
		defer held.Close()
		before, listening := p.counted(), c.listening()
		for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGKILL} {
			program.kill(signal)
			program = c.launch(p.setup(), hasty)
			program.waitReady()
			if now := c.listening(); !slices.Equal(now, listening) {
				c.t.Errorf("after signal %v: listening on %v, before on %v", signal, now, listening)
			}
			checkNotRewritten(c, before, p.counted())
		}
	})
}

func checkNotRewritten(c *cluster, before, now map[string]int) {
	c.t.Helper()
	touched := 0
	for rule, packets := range before {
		if packets > 0 {
			touched++
		}
		if n, still := now[rule]; !still || n < packets {
			c.t.Errorf("had taken %d packets, and now %d (there: %v): %s", packets, n, still, rule)
		}
	}
	if touched < 20 || len(now) != len(before) {
		c.t.Errorf("%d rules had taken packets, of %d, now %d", touched, len(before), len(now))
	}
}

func TestServicesChangedWhileTheProgramWasAwayAreServedAndOthersKeepTheirPorts(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.apply("slices", newSlice("a", []string{podA}), newSlice("b", []string{podA}), newSlice("c", []string{podA}))
	c.apply("a", newService("a", "10.96.0.10"))
	c.apply("b", newService("b", "10.96.0.11"))
	// Two ports for two Services: what one gives up the other must be able to have.
	args := []string{"--proxy-port-range", "41000-41001"}
	program := c.start(args...)
	rules := rulesOf(c, "default/a:http")
	program.kill(syscall.SIGKILL)

	c.remove("b")
	c.apply("c", newService("c", "10.96.0.12"))
	c.start(args...)
	if now := rulesOf(c, "default/a:http"); len(rules) == 0 || !slices.Equal(now, rules) {
		t.Errorf("the rules of an unchanged Service were\n%v\nand are\n%v", rules, now)
	}
	if left := rulesOf(c, "default/b:http"); len(left) > 0 {
		t.Errorf("rules of a Service that is gone: %v", left)
	}
	for _, address := range []string{"10.96.0.10:80", "10.96.0.12:80"} {
		wantAnswer(t, c.Outside, address, "pod-a")
	}
}

func rulesOf(c *cluster, name string) []string {
	c.t.Helper()
	return slices.DeleteFunc(c.ourRules(), func(l string) bool { return !strings.Contains(l, name) })
}

func TestRestartUnderTrafficFailsNobodyOnceItServesAgain(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.serveAll("pod-a")
			c.apply("web", newService("web", "10.96.0.10"), newSlice("web", []string{podA}))
			program := c.start()
			clients := askSteadily(t, c.Outside, "10.96.0.10:80", 100*time.Millisecond)
			time.Sleep(time.Second)
			down := time.Now()
			program.kill(signal)
			program = c.launch("")
			program.waitReady()
			up := time.Now()
			time.Sleep(3 * time.Second)
			checkGap(t, clients.stop(), down, up.Add(time.Second))
		})
	}
}

// checkGap demands that attempts failed between two times only, and at once.
func checkGap(t *testing.T, attempts []attempt, down, up time.Time) {
	t.Helper()
	after := 0
	for _, a := range attempts {
		if a.err == nil && a.at.After(up) {
			after++
		}
		if a.err != nil && (a.at.Before(down.Add(-50*time.Millisecond)) || a.at.After(up)) {
			t.Errorf("down at %s, up at %s: %v", down.Format("05.000"), up.Format("05.000"), a)
		}
		if a.took > time.Second {
			t.Errorf("an attempt hung: %v", a)
		}
	}
	if after < 3 {
		t.Errorf("only %d attempts after the restart", after)
	}
}

func TestNothingIsWrittenBeforeAllServicesAreKnown(t *testing.T) {
	forEachBackend(t, func(c *cluster, p *programs) {
		c.serveAll("pod-a")
		c.apply("web", newService("web", "10.96.0.10"), newSlice("web", []string{podA}))
		program := c.launch(p.setup())
		program.waitReady()
		program.kill(syscall.SIGKILL)
		rules := p.saved()

		program, objects := c.launchWithInput(p.setup())
		for range 2 { // the second half comes late
			select {
			case <-program.said.found:
				c.t.Fatalf("ready without having read all Services: %s", program.said.text())
			case <-time.After(time.Second):
			}
			if now := p.saved(); now != rules {
				c.t.Fatalf("rules were changed from\n%s\nto\n%s", rules, now)
			}
			_, err := io.WriteString(objects, asText(c.t, newService("other", "10.96.0.11")))
			check(c.t, err)
		}
		_, err := io.WriteString(objects, asText(c.t, newService("web", "10.96.0.10"), newSlice("web", []string{podA})))
		check(c.t, err)
		check(c.t, objects.Close())
		program.waitReady()
		check(c.t, p.wantPortals("10.96.0.10:80", "10.96.0.11:80"))
		check(c.t, answeredBy(c, "10.96.0.10:80", "pod-a"))
	})
}

func TestEmptyFolderIsReady(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.programs("nft")
	c.launch(p.setup()).waitReady()
	check(t, p.wantPortals())
	check(t, wantListeners(c, 0))
	if len(p.jumps()) != 10 {
		t.Errorf("jumps %v, want the 5 of each family", p.jumps())
	}
}

func TestNextProgramTakesOverWhileTheFormerOneStillDrains(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.apply("web", newService("web", "10.96.0.10", nodePort(30080)), newSlice("web", []string{podA}))
	former := c.start()
	held := hold(t, c.Outside, webAddress)
	_, err := held.ask()
	check(t, err)
	rules, listening := c.ourRules(), c.listening()

	check(t, former.cmd.Process.Signal(syscall.SIGTERM))
	within(t, time.Second, func() error { return wantListeners(c, 0) })
	next := c.start()
	if now := c.ourRules(); !slices.Equal(now, rules) || !slices.Equal(c.listening(), listening) {
		t.Errorf("rules were\n%v\nand are\n%v", rules, now)
	}
	check(t, wantSaid(next, "level=ERROR", 0))
	for _, address := range []string{webAddress, "172.20.1.2:30080"} {
		wantAnswer(t, c.Outside, address, "pod-a")
	}
	if _, err := held.ask(); err != nil {
		t.Errorf("a connection of the former program: %v", err)
	}
	check(t, held.Close())
	if status := former.waitExit(); status != exitOK {
		t.Errorf("the former program ended with status %d", status)
	}
}
