package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fiveTimesBusy is a script that ends with status 4 five times, as when another
// program has the lock, and then is the program itself.
const fiveTimesBusy = `
tried=$(wc -l <$DIR/tried 2>/dev/null || echo 0)
if [ $tried -lt 5 ]; then
	echo >>$DIR/tried
	echo "Another app is currently holding the xtables lock" >&2
	exit 4
fi
exec $REAL "$@"`

func TestRulesAppearAfterTheProgramsWereBusy(t *testing.T) {
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.serveAll("pod-a")
			p := c.programs("nft")
			program := c.launch(p.setup())
			program.waitReady()
			p.wrap(name, fiveTimesBusy)
			c.apply("web", newService("web", "10.96.0.10"), newSlice("web", []string{podA}))
			// New rules in our chains call for no command of iptables itself.
			c.onNode("iptables", "-t", "nat", "-D", "PREROUTING", "1")
			eventually(t, func() error { return answeredBy(c, "10.96.0.10:80", "pod-a") })
			if tried := strings.Count(p.note("tried"), "\n"); tried != 5 {
				t.Errorf("the program was busy %d times, want 5", tried)
			}
			check(t, wantSaid(program, "level=ERROR", 0)) // it is nobody's fault
		})
	}
}

func TestProgramStartsAlthoughTheProgramsAreBusy(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	p := c.programs("nft")
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore"} {
		p.wrap(name, fiveTimesBusy)
	}
	c.apply("web", newService("web", "10.96.0.10"), newSlice("web", []string{podA}))
	program := c.launch(p.setup())
	program.waitReady()
	wantAnswer(t, c.Outside, webAddress, "pod-a")
	check(t, wantSaid(program, "level=ERROR", 0))
}

func TestRulesAppearAfterAnotherProgramHeldTheLock(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	p := c.programs("legacy")
	lock, err := os.OpenFile(p.lock(), os.O_CREATE|os.O_RDWR, 0o600)
	check(t, err)
	defer func() { _ = lock.Close() }()
	check(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	c.apply("web", newService("web", "10.96.0.10"), newSlice("web", []string{podA}))
	program := c.launch(p.setup())
	time.Sleep(6500 * time.Millisecond) // longer than one program waits for it
	select {
	case <-program.said.found:
		t.Fatalf("ready, although the lock was held: %s", program.said.text())
	default:
	}
	check(t, unix.Flock(int(lock.Fd()), unix.LOCK_UN))
	select {
	case <-program.said.found:
	case <-time.After(3 * time.Second):
		t.Fatalf("not ready 3 s after the lock was let go: %s", program.said.text())
	}
	wantAnswer(t, c.Outside, "10.96.0.10:80", "pod-a")
}

func TestFlushedTablesAreFilledAgain(t *testing.T) {
	forEachBackend(t, func(c *cluster, p *programs) {
		c.serveAll("pod-a")
		c.apply("web", newService("web", "10.96.0.10", nodePort(30080)), newSlice("web", []string{podA}))
		program := c.launch(p.setup())
		program.waitReady()
		rules, jumps := p.ours(), p.jumps()
		for _, family := range []string{"iptables", "ip6tables"} {
			for _, command := range []string{" -t nat -F", " -t nat -X", " -F", " -X"} {
				p.run(family + command)
			}
		}
		if len(p.jumps()) > 0 {
			c.t.Fatalf("still there: %v", p.jumps())
		}
		// New connections reach the Service again; the one before is over.
		within(c.t, 10*time.Second, func() error { return answeredBy(c, "10.96.0.10:80", "pod-a") })
		within(c.t, 2*time.Second, func() error { return answeredBy(c, "172.20.1.2:30080", "pod-a") })
		eventually(c.t, func() error { return sameRules(p, rules, jumps) })
		check(c.t, wantSaid(program, "rules no longer fitted", 1))
	})
}

func TestRulesAlteredByOthersArePutRight(t *testing.T) {
	forEachBackend(t, func(c *cluster, p *programs) {
		c.serveAll("pod-a")
		c.apply("web", newService("web", "10.96.0.10", nodePort(30080)), newSlice("web", []string{podA}))
		c.launch(p.setup(), "--iptables-sync-period=1s").waitReady()
		rules, jumps := p.ours(), p.jumps()
		for _, command := range []string{
			"iptables -t nat -F KUBE-PORTALS-CONTAINER",
			"iptables -t nat -I KUBE-PORTALS-CONTAINER -d 10.96.0.10/32 -p tcp -j RETURN",
			"iptables -t nat -I PREROUTING -p tcp --dport 80 -j ACCEPT",
			"iptables -t nat -A PREROUTING -p tcp --dport 9 -j ACCEPT",
			"iptables -t nat -D OUTPUT 1",
			"iptables -I INPUT -p tcp --dport 30080 -j DROP",
		} {
			p.run(command)
			within(c.t, 5*time.Second, func() error { return answeredBy(c, "10.96.0.10:80", "pod-a") })
			within(c.t, 5*time.Second, func() error { return answeredBy(c, "172.20.1.2:30080", "pod-a") })
			within(c.t, 5*time.Second, func() error { return sameRules(p, rules, jumps) })
		}
	})
}

func TestRivalForTheFirstPlaceIsFoughtMoreAndMoreRarely(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.programs("nft")
	// Each time that our jump becomes the first rule, the rival's does again.
	p.wrap("iptables", `$REAL "$@" || exit
case "$*" in *"-I PREROUTING 1 "*"must be first"*) echo >>$DIR/moved; $REAL -t nat -I PREROUTING -j ACCEPT;; esac`)
	program := c.launch(p.setup(), "--iptables-sync-period=1h")
	program.waitReady()
	moved := func() int { return strings.Count(p.note("moved"), "\n") }
	eventually(t, func() error {
		if n := moved(); n < 3 {
			return fmt.Errorf("our jump was made the first rule %d times, want 3", n)
		}
		return nil
	})
	time.Sleep(lookInterval + time.Second)
	if n := moved(); n != 3 {
		t.Errorf("our jump was made the first rule %d times, want 3 until a later look", n)
	}
	check(t, wantSaid(program, "rules no longer fitted", 1))
}

func TestCleanLookBringsBackTheFirstInterval(t *testing.T) {
	t.Parallel()
	d := &daemon{lookWait: backoff{least: lookInterval, most: longestLookPause}}
	now := time.Now()
	look := func(out outcome) time.Duration {
		d.checkAt = d.nextLook(now, out)
		return d.checkAt.Sub(now)
	}
	damaged, written, clean := outcome{synced: true, repaired: true}, outcome{synced: true}, outcome{}
	var waits []time.Duration
	for range 6 {
		waits = append(waits, look(damaged)/time.Second)
	}
	waits = append(waits, look(written)/time.Second, look(clean)/time.Second, look(written)/time.Second, look(damaged)/time.Second)
	if want := []time.Duration{5, 10, 20, 40, 60, 60, 60, 5, 5, 5}; !slices.Equal(waits, want) {
		t.Errorf("looks are %d s apart, want %d", waits, want)
	}
}
