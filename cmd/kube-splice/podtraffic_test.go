package main

import (
	"net/netip"
	"testing"

	"github.com/kube-splice/kube-splice/redirect"
	"github.com/kube-splice/kube-splice/service"
)

func TestPodsAreToldByTheDetectLocalMode(t *testing.T) {
	t.Parallel()
	cluster := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56")}
	snap := &service.Snapshot{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}
	for mode, want := range map[string]redirect.PodTraffic{
		"":                    {CIDRs: cluster},
		"ClusterCIDR":         {CIDRs: cluster},
		"NodeCIDR":            {CIDRs: snap.PodCIDRs},
		"BridgeInterface":     {Interface: "cbr0"},
		"InterfaceNamePrefix": {Interface: "cali+"},
	} {
		got := podTraffic(mode, cluster, "cbr0", "cali", snap)
		if !(redirect.Rules{Pods: got}).Equal(redirect.Rules{Pods: want}) {
			t.Errorf("mode %q: %v, want %v", mode, got, want)
		}
		if err := got.Check(); err != nil {
			t.Errorf("mode %q: %v", mode, err)
		}
	}
	if got := podTraffic("ClusterCIDR", nil, "cbr0", "cali", snap); got.CIDRs != nil || got.Interface != "" {
		t.Errorf("without a cluster CIDR pods are told by %v", got)
	}
}
