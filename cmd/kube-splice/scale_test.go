package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The bounds are those of a slow machine under the race detector; the figures
// themselves are logged.
const (
	manyServices  = 1000
	longestStart  = 12 * time.Second
	mostResident  = 400 << 20
	mostOpenFiles = manyServices + 300
)

func manyAddress(i int) string { return fmt.Sprintf("10.96.%d.%d", 10+i/200, 1+i%200) }

// applyMany applies the i-th of many Services with its endpoints.
func (c *cluster) applyMany(i int, pods ...string) {
	c.t.Helper()
	name := fmt.Sprintf("web-%04d", i)
	c.apply(name, newService(name, manyAddress(i)), newSlice(name, pods))
}

func TestThousandServices(t *testing.T) {
	c := newCluster(t)
	wrapped := c.programs("nft")
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			wrapped.wrap(name+suffix, `echo "$0 $*" >>"$DIR/ran"; exec "$REAL" "$@"`)
		}
	}
	c.serveAll("pod-a", "pod-b", "pod-c")
	for i := range manyServices {
		c.applyMany(i, podA, podB)
	}
	last := manyAddress(manyServices-1) + ":80"

	started := time.Now()
	p := c.launch(wrapped.setup(), "--iptables-sync-period", "10m")
	within(t, longestStart, func() error {
		conn, err := c.Outside.Dial("tcp", last, 50*time.Millisecond)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = newHeld(conn).ask()
		return err
	})
	start := time.Since(started)
	p.waitReady()
	for i := 0; i < manyServices; i += 37 {
		wantShares(t, c, manyAddress(i)+":80", 1, "pod-a", "pod-b")
	}
	resident, openFiles := p.resident(), p.descriptors()
	t.Logf("%d Services: the last one answered %v after the start; resident %d MiB; %d descriptors",
		manyServices, start.Round(time.Millisecond), resident>>20, openFiles)
	if resident > mostResident || openFiles > mostOpenFiles {
		t.Errorf("resident %d bytes, want %d at most; %d descriptors, want %d at most", resident, mostResident, openFiles, mostOpenFiles)
	}

	rules, ran := c.ourRules(), wrapped.note("ran")
	var took []time.Duration
	for i := range 5 {
		changed := manyAddress(i*200) + ":80"
		c.applyMany(i*200, podC)
		began := time.Now()
		soon(t, c.Outside, changed, "pod-c")
		took = append(took, time.Since(began).Round(time.Millisecond))
	}
	t.Logf("changes of one endpoint were live after %v", took)
	if now := c.ourRules(); !slices.Equal(now, rules) {
		t.Errorf("changes of endpoints changed the rules; there are %d now, %d before", len(now), len(rules))
	}
	for line := range strings.Lines(strings.TrimPrefix(wrapped.note("ran"), ran)) {
		if !strings.Contains(line, " -S ") { // what looks for lost jumps
			t.Errorf("changes of endpoints ran %s", line)
		}
	}
}

// resident returns the program's resident memory in bytes.
func (p *program) resident() int {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	check(p.t, err)
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kilobytes, err := strconv.Atoi(strings.Fields(rest)[0])
	check(p.t, err)
	return kilobytes << 10
}
