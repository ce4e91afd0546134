package main

import (
	"net/netip"
	"testing"

	"github.com/kube-splice/kube-splice/config"
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
		got := podTraffic(detecting(mode, "10.244.0.0/16,fd00:10:244::/56"))(snap)
		if !(redirect.Rules{Pods: got}).Equal(redirect.Rules{Pods: want}) {
			t.Errorf("mode %q: %v, want %v", mode, got, want)
		}
		if err := got.Check(); err != nil {
			t.Errorf("mode %q: %v", mode, err)
		}
	}
	if got := podTraffic(detecting("ClusterCIDR", ""))(snap); got.CIDRs != nil || got.Interface != "" {
		t.Errorf("without a cluster CIDR pods are told by %v", got)
	}
}

// detecting is a configuration with everything that a mode may need.
func detecting(mode, clusterCIDR string) *config.Configuration {
	c := config.Default()
	c.DetectLocalMode, c.ClusterCIDR = config.LocalMode(mode), clusterCIDR
	c.DetectLocal.BridgeInterface, c.DetectLocal.InterfaceNamePrefix = "cbr0", "cali"
	return c
}
