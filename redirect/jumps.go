package redirect

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
)

// junction is what one built-in chain must hold of ours: its first lines and its
// last ones.
type junction struct {
	table, chain string
	head, tail   []string
}

// junctions returns the jumps into our chains. Node port jumps are made for the
// given destinations; a zero-length prefix is every address of the node.
func junctions(nodePorts []netip.Prefix) []junction {
	return []junction{
		{table: "filter", chain: "INPUT", head: []string{
			jump("INPUT", nodePortNonLocal, "let new connections to node ports through")}},
		{table: "nat", chain: "PREROUTING", head: []string{
			jump("PREROUTING", portalsContainer, "Service portals; must be first, before node ports")},
			tail: nodePortJumps("PREROUTING", nodePortContainer, nodePorts)},
		{table: "nat", chain: "OUTPUT", head: []string{
			jump("OUTPUT", portalsHost, "Service portals; must be first, before node ports")},
			tail: nodePortJumps("OUTPUT", nodePortHost, nodePorts)},
	}
}

func jump(from, to, comment string) string {
	return fmt.Sprintf(`-A %s -m comment --comment "%s" -j %s`, from, comment, to)
}

func nodePortJumps(from, to string, dests []netip.Prefix) []string {
	lines := make([]string, 0, len(dests))
	for _, dest := range dests {
		match := ""
		if dest.Bits() > 0 {
			match = " -d " + dest.String()
		}
		lines = append(lines, fmt.Sprintf(
			`-A %s%s -m comment --comment "Service node ports; must be last" -m addrtype --dst-type LOCAL -j %s`,
			from, match, to))
	}
	return lines
}

// holds reports whether lines, the rules of the built-in chain, have our jumps
// once each and in their places.
func (j junction) holds(lines []string) bool {
	head, tail := len(j.head), len(j.tail)
	return len(lines) >= head+tail &&
		len(ourJumps(j.table, lines)) == head+tail &&
		equal(lines[:head], j.head) &&
		equal(lines[len(lines)-tail:], j.tail)
}

// ourJumps returns those lines that lead into a chain of ours in that table.
func ourJumps(table string, lines []string) []string {
	var ours []string
	for _, line := range lines {
		if slices.Contains(chains[table], target(line)) {
			ours = append(ours, line)
		}
	}
	return ours
}

// repair puts j's jumps in their places in a built-in chain that now has the
// given lines. At no moment is there no jump, if there was one: commands are
// written one by one, and a new connection that arrived between a deletion and
// an insertion would miss the Service.
func (j junction) repair(ctx context.Context, t *tool, lines []string) error {
	var oldHead, oldTail []string
	for _, line := range ourJumps(j.table, lines) {
		if target(line) == target(j.head[0]) {
			oldHead = append(oldHead, line)
		} else {
			oldTail = append(oldTail, line)
		}
	}
	if !equal(oldHead, j.head) || !same(lines[0], j.head[0]) {
		if err := j.repairHead(ctx, t, oldHead); err != nil {
			return err
		}
	}
	inPlace := len(oldTail) == len(j.tail) && equal(lines[len(lines)-len(j.tail):], j.tail)
	if inPlace {
		return nil
	}
	return j.repairTail(ctx, t, oldTail)
}

// repairHead makes the one head jump the first rule. A rule is deleted by what
// it says, and the first such rule goes: so while old ones are deleted, a
// stand-in that says something else does their work.
func (j junction) repairHead(ctx context.Context, t *tool, old []string) error {
	if len(old) == 0 {
		return t.insert(ctx, j.table, j.head[0])
	}
	standIn := jump(j.chain, target(j.head[0]), "stands in while the jump below is moved")
	if err := t.insert(ctx, j.table, standIn); err != nil {
		return err
	}
	for _, line := range old {
		if err := t.delete(ctx, j.table, line); err != nil {
			return err
		}
	}
	if err := t.insert(ctx, j.table, j.head[0]); err != nil {
		return err
	}
	return t.delete(ctx, j.table, standIn)
}

// repairTail appends the tail jumps and then deletes the old ones: the first of
// two equal rules, which is the old one, is the one that is deleted.
func (j junction) repairTail(ctx context.Context, t *tool, old []string) error {
	for _, line := range j.tail {
		if err := t.append(ctx, j.table, line); err != nil {
			return err
		}
	}
	for _, line := range old {
		if err := t.delete(ctx, j.table, line); err != nil {
			return err
		}
	}
	return nil
}
