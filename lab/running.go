package lab

import (
	"fmt"
	"io"
	"strings"
)

// Running is a lab that a keeper process holds.
type Running struct {
	PID    int // of the keeper
	Prefix string

	ownRun bool
}

// Enter returns the start of a command line that runs a command in one of the
// lab's namespaces, such as "client".
func (r *Running) Enter(machine string) []string {
	name := r.Prefix + machine
	if !r.ownRun {
		return []string{"ip", "netns", "exec", name}
	}
	return []string{"nsenter", "--preserve-credentials", "-U", "-m", "-t", fmt.Sprint(r.PID),
		fmt.Sprintf("--net=/proc/%d/root%s/%s", r.PID, namedDir, name)}
}

// Describe writes a line for each namespace of the lab: its name, its first
// address, and how to run a command in it.
func (r *Running) Describe(w io.Writer) error {
	for _, m := range plan(Config{}) {
		addr := "-"
		if len(m.links) > 0 {
			addr = m.links[0].addrs[0].Addr().String()
		}
		_, err := fmt.Fprintf(w, "%-8s %-12s %s\n", m.name, addr, strings.Join(r.Enter(m.name), " "))
		if err != nil {
			return err
		}
	}
	return nil
}
