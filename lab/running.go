package lab

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Running is a lab that a keeper process holds.
type Running struct {
	PID    int // of the keeper
	Prefix string
	Port   int // at which every pod answers HTTP

	ownRun bool
}

// Enter returns the start of a command line that runs a command in one of the
// lab's namespaces, such as "client", in the folder where the line is used.
func (r *Running) Enter(machine string) []string {
	name := r.Prefix + machine
	if !r.ownRun {
		return []string{"ip", "netns", "exec", name}
	}
	return []string{"nsenter", "--preserve-credentials", "-U", "-m", "--wd=.", "-t", fmt.Sprint(r.PID),
		fmt.Sprintf("--net=/proc/%d/root%s/%s", r.PID, namedDir, name)}
}

// Describe writes a table of the lab's machines: the name, the first address of each
// family, and how to run a command there.
func (r *Running) Describe(w io.Writer) error {
	const row = "%-8s %-12s %-18s %s\n"
	if _, err := fmt.Fprintf(w, row, "MACHINE", "IPv4", "IPv6", "RUN A COMMAND THERE"); err != nil {
		return err
	}
	for _, m := range plan(Config{}) {
		addrs := map[bool]string{true: "-", false: "-"} // by whether it is an IPv4 one
		for _, l := range m.links {
			for _, a := range slices.Backward(l.addrs) {
				addrs[a.Addr().Is4()] = a.Addr().String()
			}
		}
		_, err := fmt.Fprintf(w, row, m.name, addrs[true], addrs[false], strings.Join(r.Enter(m.name), " "))
		if err != nil {
			return err
		}
	}
	return nil
}
