package config_test

import (
	"testing"

	"github.com/kube-splice/kube-splice/config"
)

func TestExternalIPsAreAllowedUnlessTheirGateIsFalse(t *testing.T) {
	for lines, want := range map[string]bool{
		"": true,
		"featureGates: {AllowServiceExternalIPs: true}":  true,
		"featureGates: {AllowServiceExternalIPs: false}": false,
		"featureGates: {SomeOtherGate: false}":           true,
	} {
		if got := config.AllowsExternalIPs(decode(t, lines).Config); got != want {
			t.Errorf("%q: %v, want %v", lines, got, want)
		}
	}
}
