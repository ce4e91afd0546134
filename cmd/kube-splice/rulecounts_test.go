package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

func TestRulesAreCountedInTheMetrics(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	c.start("--iptables-sync-period", "1h")
	ours := regexp.MustCompile(`(?m)^-A (KUBE-|.* -j KUBE-)`)
	wantCounts := func(writtenInNat int) {
		t.Helper()
		want := []string{fmt.Sprintf("kubeproxy_sync_proxy_rules_iptables_last{ip_family=\"IPv4\",table=\"nat\"} %d\n", writtenInNat)}
		for family, program := range map[string]string{"IPv4": "iptables-save", "IPv6": "ip6tables-save"} {
			for _, table := range []string{"nat", "filter"} {
				there := len(ours.FindAllString(c.onNode(program, "-t", table), -1))
				want = append(want, fmt.Sprintf("kubeproxy_sync_proxy_rules_iptables_total{ip_family=%q,table=%q} %d\n", family, table, there))
			}
		}
		eventually(t, func() error {
			_, body, err := get(c.Node, "http://127.0.0.1:10249/metrics")
			for _, series := range want {
				if err == nil && !strings.Contains(body, series) {
					err = fmt.Errorf("no series %q", series)
				}
			}
			return err
		})
	}
	// One Service with a clusterIP: four jumps, two marks let through, two rules.
	wantCounts(8)
	c.apply("more", newService("more", "10.96.0.33"), newSlice("more", []string{podA}))
	eventually(t, func() error { return answeredBy(c, "10.96.0.33:80", "pod-a") })
	wantCounts(2)
}
