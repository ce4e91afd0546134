package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// programs is a folder that leads the plain names of the iptables programs to those
// of one kernel interface, as a distribution's choice would.
type programs struct {
	c       *cluster
	backend string
	dir     string
}

// forEachBackend runs a test in a cluster of its own with the programs of each
// kernel interface.
func forEachBackend(t *testing.T, test func(c *cluster, p *programs)) {
	for _, backend := range []string{"nft", "legacy"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			test(c, c.programs(backend))
		})
	}
}

func (c *cluster) programs(backend string) *programs {
	c.t.Helper()
	p := &programs{c: c, backend: backend, dir: c.t.TempDir()}
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			check(c.t, os.Symlink(p.real(name+suffix), filepath.Join(p.dir, name+suffix)))
		}
	}
	return p
}

// setup puts the programs first in the PATH of what launch starts. The lock of the
// legacy programs is this cluster's own.
func (p *programs) setup() string {
	return fmt.Sprintf("export PATH=%s:$PATH XTABLES_LOCKFILE=%s", p.dir, p.lock())
}

func (p *programs) lock() string { return filepath.Join(p.dir, "lock") }

// real returns the path of a program of the kernel interface.
func (p *programs) real(name string) string {
	p.c.t.Helper()
	base, suffix, _ := strings.Cut(name, "-")
	name = base + "-" + p.backend
	if suffix != "" {
		name += "-" + suffix
	}
	path, err := exec.LookPath(name)
	check(p.c.t, err)
	return path
}

// wrap puts a shell script in the place of a program; in it, $REAL is the program
// itself and $DIR a folder for notes. A running kube-splice gets it too.
func (p *programs) wrap(name, script string) {
	p.c.t.Helper()
	text := fmt.Sprintf("#!/bin/sh\nREAL=%s\nDIR=%s\n%s\n", p.real(name), p.dir, script)
	path := filepath.Join(p.dir, name)
	check(p.c.t, os.WriteFile(path+".new", []byte(text), 0o700))
	check(p.c.t, os.Rename(path+".new", path))
}

// note returns what scripts wrote to a file in $DIR.
func (p *programs) note(name string) string {
	text, _ := os.ReadFile(filepath.Join(p.dir, name)) // none: no script ran
	return string(text)
}

// run runs one of the programs in the node.
func (p *programs) run(command string) string {
	p.c.t.Helper()
	words := strings.Fields(command)
	words[0] = p.real(words[0])
	return p.c.onNode(words...)
}

var (
	remarks  = regexp.MustCompile(`(?m)^#.*\n`)
	counters = regexp.MustCompile(`\[\d+:\d+\]`)
)

// saved returns all rules of both families, less the dates and counters that
// change by themselves.
func (p *programs) saved() string {
	p.c.t.Helper()
	text := remarks.ReplaceAllString(p.run("iptables-save")+p.run("ip6tables-save"), "")
	return counters.ReplaceAllString(text, "[0:0]")
}

// ours returns the rules in our chains, sorted.
func (p *programs) ours() []string { return p.lines(`(?m)^-A KUBE-.*$`) }

// jumps returns the rules of built-in chains that lead to our chains, sorted.
func (p *programs) jumps() []string { return p.lines(`(?m)^-A [A-Z]+ .*-j KUBE-.*$`) }

func (p *programs) lines(pattern string) []string {
	p.c.t.Helper()
	lines := regexp.MustCompile(pattern).FindAllString(p.saved(), -1)
	slices.Sort(lines)
	return lines
}

// portalOf finds, in a rule, the portal that is led away: an address, if it is not
// a node port, and a port.
var portalOf = regexp.MustCompile(`^-A KUBE-(?:PORTALS|NODEPORT)-CONTAINER (?:-d ([0-9a-f.:]+)/\d+ )?.* --dport (\d+) `)

// portals returns what is led away from pods and other hosts, as in
// "10.96.0.10:80" or ":30080", sorted.
func (p *programs) portals() []string {
	p.c.t.Helper()
	var all []string
	for _, line := range p.ours() {
		if found := portalOf.FindStringSubmatch(line); found != nil {
			all = append(all, found[1]+":"+found[2])
		}
	}
	slices.Sort(all)
	return slices.Compact(all) // an externalIP takes two rules
}

// wantPortals waits until just these portals are led away.
func (p *programs) wantPortals(want ...string) error {
	slices.Sort(want)
	if got := p.portals(); !slices.Equal(got, want) {
		return fmt.Errorf("rules lead away %v, want %v", got, want)
	}
	return nil
}

// listening returns the TCP addresses that somebody listens on in the node.
func (c *cluster) listening() []string {
	c.t.Helper()
	var all []string
	for line := range strings.Lines(c.onNode("ss", "-Hlnt")) {
		address := strings.Fields(line)[3]
		if !strings.HasSuffix(address, ":10256") && !strings.HasSuffix(address, ":10249") { // health and metrics
			all = append(all, address)
		}
	}
	slices.Sort(all)
	return all
}

func wantListeners(c *cluster, n int) error {
	if now := c.listening(); len(now) != n {
		return fmt.Errorf("listening on %v, want %d listeners", now, n)
	}
	return nil
}

// answeredBy asks from outside and tells whether the pod answered.
func answeredBy(c *cluster, address, pod string) error {
	who, err := ask(c.Outside, address)
	if err == nil && who != pod {
		err = fmt.Errorf("%s: answered by %q, want %q", address, who, pod)
	}
	return err
}

// sameRules tells whether rules and jumps are those of an earlier moment.
func sameRules(p *programs, rules, jumps []string) error {
	if now := p.ours(); !slices.Equal(now, rules) {
		return fmt.Errorf("rules are\n%v\nwere\n%v", now, rules)
	}
	if now := p.jumps(); !slices.Equal(now, jumps) {
		return fmt.Errorf("jumps are\n%v\nwere\n%v", now, jumps)
	}
	return nil
}
