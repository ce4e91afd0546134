package main

import (
	"net/netip"

	"github.com/kube-splice/kube-splice/redirect"
	"github.com/kube-splice/kube-splice/service"
)

// podTraffic says how packets of pods are told from others, by kube-proxy's
// detectLocalMode: ClusterCIDR unless it is one of the other three. In the mode
// NodeCIDR they follow the Node object, and rules with them, where kube-proxy ends to
// be started again.
func podTraffic(mode string, clusterCIDR []netip.Prefix, bridge, prefix string, snap *service.Snapshot) redirect.PodTraffic {
	switch mode {
	case "NodeCIDR":
		return redirect.PodTraffic{CIDRs: snap.PodCIDRs}
	case "BridgeInterface":
		return redirect.PodTraffic{Interface: bridge}
	case "InterfaceNamePrefix":
		return redirect.PodTraffic{Interface: prefix + "+"}
	}
	return redirect.PodTraffic{CIDRs: clusterCIDR}
}
