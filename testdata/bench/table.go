package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// table prints rows in Markdown, each as soon as it is known.
type table struct{ proxies []proxy }

func newTable(proxies []proxy) table {
	t := table{proxies}
	cells := []string{"", "unit"}
	for _, p := range proxies {
		cells = append(cells, p.title)
	}
	for _, p := range t.ours() {
		cells = append(cells, p.name+" / HAProxy", p.name+" / better")
	}
	t.line(cells)
	t.line(slices.Repeat([]string{"---"}, len(cells)))
	return t
}

func (t table) line(cells []string) { fmt.Println("| " + strings.Join(cells, " | ") + " |") }

func (t table) ours() (ours []proxy) {
	for _, p := range t.proxies {
		if p.ours {
			ours = append(ours, p)
		}
	}
	return ours
}

// print prints the figures of a row; samples are those of each proxy.
func (t table) print(r row, samples [][]sample) {
	for _, m := range r.measures {
		cells, medians := []string{m.what, m.unit}, map[string]float64{}
		for i, p := range t.proxies {
			var figures []float64
			for _, s := range samples[i] {
				figures = append(figures, m.of(s))
			}
			if len(figures) == 0 || m.ofProxy && p.command == nil {
				cells = append(cells, "")
				continue
			}
			slices.Sort(figures)
			medians[p.name] = figures[len(figures)/2]
			cells = append(cells, fmt.Sprintf("%s (%s–%s)", short(medians[p.name]), short(figures[0]), short(figures[len(figures)-1])))
		}
		for _, p := range t.ours() {
			cells = append(cells, ratio(medians[p.name], medians["haproxy"]), ratio(medians[p.name], m.better(medians)))
		}
		t.line(cells)
	}
}

// better is the better median of HAProxy and nginx, 0 without either.
func (m measure) better(medians map[string]float64) float64 {
	a, b := medians["haproxy"], medians["nginx"]
	if m.more || a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

func ratio(a, b float64) string {
	if a == 0 || b == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", a/b)
}

// short writes three digits, or all before the point.
func short(f float64) string {
	switch {
	case f >= 100:
		return strconv.FormatFloat(f, 'f', 0, 64)
	case f >= 10:
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return strconv.FormatFloat(f, 'f', 2, 64)
}
