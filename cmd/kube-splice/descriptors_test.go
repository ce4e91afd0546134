package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// cpuTime returns the processor time the program has used.
func (p *program) cpuTime() time.Duration {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	check(p.t, err)
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest) // from the third on: proc_pid_stat(5)
	var ticks int64
	for _, field := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(field, 10, 64)
		check(p.t, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100
}

func TestDescriptorShortageIsSatOutQuietly(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.backend("pod-a", echo)
	c.publish(podA)
	p := c.launch("ulimit -n 256")
	p.waitReady()

	const clients, holding = 300, 6 * time.Second
	var conns []net.Conn
	for range clients {
		conns = append(conns, connect(t, c.client(), webAddress))
	}
	before := p.cpuTime()
	time.Sleep(holding)
	if used := p.cpuTime() - before; used > holding/5 {
		t.Errorf("%v of processor time used in %v without descriptors, want less than a fifth", used, holding)
	}
	exchange(t, conns[0], "ping") // who has come in is served
	c.apply("more", newService("more", "10.96.0.20"))
	within(t, time.Second, func() error { _, err := c.findListener("default/more:http"); return err })
	if n := p.warnings(); n > 10 || !strings.Contains(p.said.text(), "short of descriptors") {
		t.Errorf("%d warnings, want a few that say what is short:\n%s", n, p.said.text())
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	// The race detector makes the runtime lose pipes, which the program gets back within
	// seconds only; so how long this takes says little.
	conn := connect(t, c.client(), webAddress)
	exchange(t, conn, "ping")

	c.remove("web")
	c.remove("more")
	eventually(t, func() error { return wantListeners(c, 0) })
	warnings := p.warnings()
	time.Sleep(2 * time.Second)
	if more := p.warnings() - warnings; more > 0 {
		t.Errorf("%d warnings after the Service had gone:\n%s", more, p.said.text())
	}
}

// warnings counts the lines that are not mere information.
func (p *program) warnings() int {
	text := p.said.text()
	return strings.Count(text, "level=WARN") + strings.Count(text, "level=ERROR")
}

// Bulk data that waits for its reader has pipes.
func TestReadersThatHangLeaveDescriptorsForRules(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{64, 256} {
		c := newCluster(t)
		c.backend("pod-a", sendForEver)
		c.publish(podA)
		p := c.launch(fmt.Sprintf("ulimit -n %d", limit))
		p.waitReady()
		served := make(chan struct{}, limit)
		for range limit { // more than there is room for
			conn := connect(t, c.client(), webAddress)
			go func() {
				if n, _ := io.CopyN(io.Discard, conn, 2<<20); n > 0 {
					served <- struct{}{}
				}
			}()
		}
		eventually(t, func() error { return wantSaid(p, "short of descriptors", 1) })
		for range limit / 16 {
			<-served
		}
		c.apply("more", newService("more", "10.96.0.20"), newSlice("more", []string{podB}))
		eventually(t, func() error {
			if rules := strings.Join(c.ourRules(), "\n"); !strings.Contains(rules, "10.96.0.20/32") {
				return fmt.Errorf("with %d descriptors of %d open, the rules of a new Service are not written:\n%s", p.descriptors(), limit, p.said.text())
			}
			return nil
		})
	}
}
