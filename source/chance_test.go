package source_test

import (
	"math/rand/v2"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// chance makes objects that often want the same as others.
type chance struct{ *rand.Rand }

func (c chance) oneIn(n int) bool { return c.IntN(n) == 0 }

func (c chance) address(prefix string, n int) string { return prefix + strconv.Itoa(1+c.IntN(n)) }

func (c chance) name() string { return "s" + strconv.Itoa(c.IntN(8)) }

func (c chance) service() *corev1.Service {
	svc := newService(c.name(), c.address("10.96.0.", 12))
	svc.Namespace = []string{"default", "other"}[c.IntN(2)]
	svc.Spec.Type = []corev1.ServiceType{"ClusterIP", "NodePort", "LoadBalancer", "NodePort", "ExternalName"}[c.IntN(5)]
	for i := range svc.Spec.Ports {
		svc.Spec.Ports[i].Port = int32(80 + c.IntN(2))
		svc.Spec.Ports[i].NodePort = int32(30000 + c.IntN(4))
	}
	if c.oneIn(3) {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{
			Name: "dns", Port: 53, Protocol: []corev1.Protocol{"TCP", "UDP", "SCTP"}[c.IntN(3)], NodePort: int32(30000 + c.IntN(4)),
		})
	}
	if c.oneIn(3) {
		svc.Spec.ExternalIPs = []string{c.address("192.0.2.", 3), c.address("10.96.0.", 12)}
	}
	if c.oneIn(3) {
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: c.address("192.0.2.", 3)}}
	}
	if c.oneIn(4) {
		svc.Annotations = map[string]string{"kube-splice.io/idle-timeout": []string{"5m", "x"}[c.IntN(2)]}
	}
	if c.oneIn(3) {
		svc.Spec.LoadBalancerSourceRanges = [][]string{{"192.0.2.0/24"}, {"fd00::/8", "x"}, {"0.0.0.0/0"}, {"x"}}[c.IntN(4)]
	}
	if c.oneIn(2) {
		svc.Spec.InternalTrafficPolicy = new([]corev1.ServiceInternalTrafficPolicy{"Local", "Local", "Cluster", "x"}[c.IntN(4)])
		svc.Spec.ExternalTrafficPolicy = []corev1.ServiceExternalTrafficPolicy{"Local", "Local", "Cluster", "x"}[c.IntN(4)]
	}
	if c.oneIn(4) {
		svc.Spec.ClusterIPs = []string{svc.Spec.ClusterIP, c.address("fd00::", 4)}
	}
	switch c.IntN(12) {
	case 0:
		svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "None", nil
	case 1:
		svc.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "x"}
	}
	return svc
}

func (c chance) slice() *discoveryv1.EndpointSlice {
	prefix := []string{"10.244.1.", "fd00:1::", "127.0.0."}[min(2, c.IntN(8)/3)]
	var ips []string
	for range c.IntN(4) {
		ips = append(ips, c.address(prefix, 5))
	}
	slice := newSlice(c.name(), "slice"+strconv.Itoa(c.IntN(16)), ips)
	slice.Namespace = []string{"default", "other"}[c.IntN(2)]
	for i := range slice.Endpoints {
		ready, terminating := !c.oneIn(3), c.oneIn(4)
		slice.Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: &ready, Terminating: &terminating}
		slice.Endpoints[i].NodeName = new(c.address("n", 3))
		slice.Endpoints[i].Hints = c.hints()
	}
	if c.oneIn(8) {
		slice.Labels = nil
	}
	return slice
}

func (c chance) zone() string { return c.address("zone", 2) }

// hints are seldom none, since one endpoint without makes all others moot.
func (c chance) hints() *discoveryv1.EndpointHints {
	if c.oneIn(10) {
		return nil
	}
	hints := &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: c.zone()}}}
	if c.oneIn(2) {
		hints.ForNodes = []discoveryv1.ForNode{{Name: c.address("n", 3)}}
	}
	return hints
}

// changeNode gives the node another address and often another zone, or removes it. It
// returns the addresses it has now.
func (c chance) changeNode(api *apiServer, ip string) []string {
	node := newNode(ip)
	if c.oneIn(10) {
		api.remove(node)
		return nil
	}
	if !c.oneIn(3) {
		node.Labels = map[string]string{corev1.LabelTopologyZone: c.zone()}
	}
	node.Spec.PodCIDRs = [][]string{nil, {"10.244.1.0/24"}, {"10.244.1.0/24", "fd00:1::/64"}, {"x"}}[c.IntN(4)]
	api.put(node)
	return []string{ip}
}

// change makes one change.
func (c chance) change(api *apiServer) {
	var o apiObject = c.service()
	if c.oneIn(2) {
		o = c.slice()
	}
	if c.oneIn(3) {
		api.remove(o)
	} else {
		api.put(o)
	}
}
