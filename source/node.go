package source

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/service"
)

// describeNode fills in what the Node object says of this node; nil says nothing.
func describeNode(next *service.Snapshot, node *corev1.Node, said *notices) {
	if node == nil {
		return
	}
	say := said.about(reference("Node", "", node.Name))
	next.NodeIPs, next.PodCIDRs, next.Node = nodeIPs(node, say), podCIDRs(node, say), nodeState(node)
}

// sameNode reports whether two Snapshots say the same of this node.
func sameNode(a, b *service.Snapshot) bool {
	return a.Node == b.Node && slices.Equal(a.NodeIPs, b.NodeIPs) && slices.Equal(a.PodCIDRs, b.PodCIDRs)
}

// zoneOf returns the zone a node is in. The older labels for it do not count, as in
// kube-proxy.
func zoneOf(node *corev1.Node) string {
	if node == nil {
		return ""
	}
	return node.Labels[corev1.LabelTopologyZone]
}

// nodeState returns where the node is and whether it may be given traffic.
func nodeState(node *corev1.Node) service.Node {
	const autoscaler = "ToBeDeletedByClusterAutoscaler" // the key cluster-autoscaler and kube-proxy share
	isAutoscalers := func(t corev1.Taint) bool { return t.Key == autoscaler }
	return service.Node{
		Known: true, Deleting: node.DeletionTimestamp != nil,
		Tainted: slices.ContainsFunc(node.Spec.Taints, isAutoscalers),
		Zone:    zoneOf(node),
	}
}

// podCIDRs returns where the node's pods have their addresses. A Node written by hand
// may have only the older field, which an API server keeps in step.
func podCIDRs(node *corev1.Node, say say) []netip.Prefix {
	list := node.Spec.PodCIDRs
	if len(list) == 0 && node.Spec.PodCIDR != "" {
		list = []string{node.Spec.PodCIDR}
	}
	var found []netip.Prefix
	for _, s := range list {
		prefix, err := parsePrefix(s)
		if err != nil {
			say("spec.podCIDRs: %v; correct or remove it", err)
			continue
		}
		found = append(found, prefix)
	}
	return found
}

// nodeIPs returns the node's internal addresses in the order of its status. In a family
// without any, the external ones take their place, as in kube-proxy.
func nodeIPs(node *corev1.Node, say say) []netip.Addr {
	internal := addressesOfType(node, corev1.NodeInternalIP, say)
	external := slices.DeleteFunc(addressesOfType(node, corev1.NodeExternalIP, say), func(ip netip.Addr) bool {
		return slices.ContainsFunc(internal, func(other netip.Addr) bool { return service.FamilyOf(other) == service.FamilyOf(ip) })
	})
	return primaryFirst(append(internal, external...))
}

func addressesOfType(node *corev1.Node, kind corev1.NodeAddressType, say say) []netip.Addr {
	var ips []netip.Addr
	for _, a := range node.Status.Addresses {
		if a.Type != kind {
			continue
		}
		ip, err := parseAddr(a.Address)
		if err != nil {
			say("status.addresses: %v; correct or remove it", err)
			continue
		}
		ips = append(ips, ip)
	}
	return ips
}

// primaryFirst moves the first address of each family to the front.
func primaryFirst(ips []netip.Addr) []netip.Addr {
	seen := map[service.Family]bool{}
	rank := make(map[netip.Addr]int, len(ips))
	for _, ip := range ips {
		if _, known := rank[ip]; known {
			continue
		}
		if family := service.FamilyOf(ip); seen[family] {
			rank[ip] = 1
		} else {
			seen[family], rank[ip] = true, 0
		}
	}
	slices.SortStableFunc(ips, func(a, b netip.Addr) int { return cmp.Compare(rank[a], rank[b]) })
	return ips
}
