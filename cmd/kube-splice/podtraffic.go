package main

import (
	"github.com/kube-splice/kube-splice/config"
	"github.com/kube-splice/kube-splice/redirect"
	"github.com/kube-splice/kube-splice/service"
)

// podTraffic returns what says how packets of pods are told from others, by
// kube-proxy's detectLocalMode. In the mode NodeCIDR they follow the Node object, and
// rules with them, where kube-proxy ends to be started again.
func podTraffic(c *config.Configuration) func(*service.Snapshot) redirect.PodTraffic {
	pods := redirect.PodTraffic{}
	switch c.DetectLocalMode {
	case "NodeCIDR":
		return func(snap *service.Snapshot) redirect.PodTraffic { return redirect.PodTraffic{CIDRs: snap.PodCIDRs} }
	case "BridgeInterface":
		pods.Interface = c.DetectLocal.BridgeInterface
	case "InterfaceNamePrefix":
		pods.Interface = c.DetectLocal.InterfaceNamePrefix + "+"
	default:
		pods.CIDRs = config.ClusterCIDRs(c)
	}
	return func(*service.Snapshot) redirect.PodTraffic { return pods }
}

// detectLocalField names the field that may hold the name of an interface.
func detectLocalField(c *config.Configuration) string {
	if c.DetectLocalMode == "BridgeInterface" {
		return "detectLocal.bridgeInterface"
	}
	return "detectLocal.interfaceNamePrefix"
}
