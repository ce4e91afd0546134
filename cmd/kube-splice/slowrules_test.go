package main

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// takesSeconds is a script that makes a program slow.
const takesSeconds = `echo >>$DIR/runs
sleep 3
exec $REAL "$@"`

func TestSlowRuleProgramsHoldUpNoConnectionAndNoChangeOfEndpoints(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b", "pod-c")
	p := c.programs("nft")
	c.apply("web", newService("web", "10.96.0.10"), newSlice("web", []string{podA}))
	c.apply("swapped", newService("swapped", "10.96.0.11"), newSlice("swapped", []string{podB}))
	c.launch(p.setup()).waitReady()
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"} {
		p.wrap(name, takesSeconds)
	}
	clients := askSteadily(t, c.Outside, "10.96.0.10:80", 20*time.Millisecond)
	pods := []string{podC, podB}
	names := []string{"pod-c", "pod-b"}
	for i := range 4 {
		c.apply("edited", newService("edited", "10.96.0.12", port(8000+int32(i))), newSlice("edited", []string{podA}))
		time.Sleep(time.Second)
		// A change of endpoints needs no rule, so it does not wait for them.
		c.apply("swapped", newService("swapped", "10.96.0.11"), newSlice("swapped", []string{pods[i%2]}))
		within(t, time.Second, func() error { return answeredBy(c, "10.96.0.11:80", names[i%2]) })
		time.Sleep(time.Second)
	}
	checkPace(t, clients.stop())
	if runs := len(p.note("runs")); runs < 3 {
		t.Errorf("rule programs ran %d times: the rules were in nobody's way", runs)
	}
}

// A liveness probe would end a program that is only busy.
func TestChangesWithoutAnEndLeaveTheProgramHealthy(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	p := c.programs("nft")
	const period = 3 * time.Second
	c.launch(p.setup(), "--iptables-sync-period", period.String()).waitReady()
	for _, name := range []string{"iptables-restore", "ip6tables-restore"} {
		p.wrap(name, "sleep 1\nexec $REAL \"$@\"")
	}
	began := time.Now()
	for i := 0; time.Since(began) < 4*period; i++ { // an update is overdue after two
		c.apply("edited", newService("edited", "10.96.0.12", port(8000+int32(i%100))))
		wantPage(t, c.Outside, "http://172.20.1.2:10256/livez", 200, "")
		time.Sleep(20 * time.Millisecond)
	}
}

// checkPace demands that every attempt succeeded, and quickly. One that waited for
// a rule program would take seconds, and with it the many that came meanwhile; the
// few that a busy machine delays are let pass.
// hangsOnce is a script that makes a program hang the first time, and note its process.
const hangsOnce = `[ -e $DIR/hung ] && exec $REAL "$@"
echo $$ >>$DIR/hung
exec sleep 1000`

func TestRuleProgramThatHangsIsSaidAndMayBeEnded(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	p := c.programs("nft")
	program := c.launch(p.setup())
	program.waitReady()
	p.wrap("iptables-restore", hangsOnce)
	c.apply("new", newService("new", "10.96.0.11"), newSlice("new", []string{podA}))
	eventually(t, func() error { return wantSaid(program, "still at work on the rules", 1) })
	hung, err := strconv.Atoi(strings.TrimSpace(p.note("hung")))
	check(t, err)
	check(t, syscall.Kill(hung, syscall.SIGKILL))
	eventually(t, func() error { return answeredBy(c, "10.96.0.11:80", "pod-a") })
}

func checkPace(t *testing.T, attempts []attempt) {
	t.Helper()
	slow := 0
	for _, a := range attempts {
		if a.err != nil || a.took > 500*time.Millisecond {
			t.Errorf("failed or slow: %v", a)
		}
		if a.took > 100*time.Millisecond {
			slow++
		}
	}
	if slow > len(attempts)/100 || len(attempts) < 50 {
		t.Errorf("%d of %d attempts took more than 100 ms; want 1 in 100 of at least 50", slow, len(attempts))
	}
}
