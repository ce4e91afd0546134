package redirect

import (
	"slices"
	"strconv"
	"strings"
)

// change is what is to be done to one table, as lines for iptables-restore.
type change struct {
	table  string
	chains []string // to be made, or emptied where they are
	rules  []string // commands on rules, in order
}

// diff returns what must be written so that the kernel's table, which now has
// the given chains, has exactly the lines of set in ours.
func diff(table string, set ruleset, have map[string][]string) change {
	c := change{table: table}
	for _, chain := range chains[table] {
		lines, exists := have[chain]
		if exists && equal(lines, set[chain]) {
			continue
		}
		if edits := edit(chain, lines, set[chain]); exists && len(edits) < len(set[chain]) {
			c.rules = append(c.rules, edits...)
			continue
		}
		c.chains = append(c.chains, chain)
		c.rules = append(c.rules, set[chain]...)
	}
	return c
}

// edit returns the commands that turn a chain's lines into the wanted ones and
// leave alone, with their counters, those that are in place. Rules go and come
// by number, which holds within a transaction. Lines that are all there but in
// another order give more commands than writing the chain again.
func edit(chain string, have, want []string) []string {
	index := make(map[string]int, len(want))
	for i, line := range want {
		index[line] = i
	}
	kept := make([]bool, len(want))
	var dropped []int
	next := 0
	for n, line := range have {
		if i, wanted := index[line]; wanted && i >= next {
			kept[i] = true
			next = i + 1
		} else {
			dropped = append(dropped, n+1)
		}
	}
	var commands []string
	for _, number := range slices.Backward(dropped) { // the others keep their numbers
		commands = append(commands, "-D "+chain+" "+strconv.Itoa(number))
	}
	for i, line := range want {
		if !kept[i] {
			rule := strings.TrimPrefix(line, "-A "+chain+" ")
			commands = append(commands, "-I "+chain+" "+strconv.Itoa(i+1)+" "+rule)
		}
	}
	return commands
}

// input renders changes for iptables-restore, one transaction a table. With
// --noflush a declared chain is emptied, and other chains are left alone.
func input(changes []change) []string {
	var lines []string
	for _, c := range changes {
		if len(c.chains) == 0 && len(c.rules) == 0 {
			continue
		}
		lines = append(lines, "*"+c.table)
		for _, chain := range c.chains {
			lines = append(lines, ":"+chain+" - [0:0]")
		}
		lines = append(lines, c.rules...)
		lines = append(lines, "COMMIT")
	}
	return lines
}

// split cuts changes into small ones. The first one of a table declares, and so
// empties, the chains; the others go on from there.
func split(changes []change) [][]change {
	var parts [][]change
	for _, c := range changes {
		for len(c.rules) > smallRules {
			parts = append(parts, []change{{c.table, c.chains, c.rules[:smallRules]}})
			c = change{c.table, nil, c.rules[smallRules:]}
		}
		parts = append(parts, []change{c})
	}
	return parts
}
