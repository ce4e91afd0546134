package redirect

import "github.com/kube-splice/kube-splice/service"

// TableCount is how many rules of ours one table of one family holds.
type TableCount struct {
	Family service.Family
	Table  string // "filter" or "nat"
	// Total is how many rules are in force, jumps included, as of the last Sync that
	// succeeded.
	Total int
	// Written is how many commands on rules the last Sync gave: rules added, and rules
	// deleted one by one.
	Written int
}

// Counts returns what the last Sync left and did, by family and table. A family that
// this node does not have, or that was never written, is left out.
func (t *IPTables) Counts() []TableCount {
	var counts []TableCount
	for _, tool := range []*tool{t.v4, t.v6} {
		placed, known := t.placed[tool]
		if !known {
			continue
		}
		for _, table := range tables {
			counts = append(counts, TableCount{tool.family, table, placed.total[table], tool.written[table]})
		}
	}
	return counts
}

// count returns how many rules of ours each table has with these contents and jumps.
func count(set ruleset, places []junction) map[string]int {
	total := map[string]int{}
	for _, table := range tables {
		for _, chain := range chains[table] {
			total[table] += len(set[chain])
		}
	}
	for _, j := range places {
		total[j.table] += len(j.head) + len(j.tail)
	}
	return total
}
