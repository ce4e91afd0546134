package source

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-splice/kube-splice/service"
)

// labelProxyName on a Service hands it to another proxy, whatever the value.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// buildService returns the ports of one Service, whatever other Services say:
// the unit of work when one Service or one of its slices changes. The zone is this
// node's.
func buildService(svc *corev1.Service, its []*discoveryv1.EndpointSlice, o Options, zone string) ([]*service.Port, notices) {
	var said notices
	if !ours(svc) {
		return nil, nil
	}
	say := said.about(reference("Service", svc.Namespace, svc.Name))
	if err := checkObjectName(svc); err != nil {
		say("is not served: %v; rename it", err)
		return nil, said
	}
	if primaryClusterIP(&svc.Spec) == "" {
		say("has no spec.clusterIP and is not served: without an API server nobody allots one; set e.g. clusterIP: 10.96.0.99")
		return nil, said
	}
	checkType(&svc.Spec, say)
	if o.NoExternalIPs {
		svc = withoutExternalIPs(svc, say)
	}
	fronts := frontends(svc, say)
	common := service.Port{HealthCheckNodePort: healthCheckNodePort(svc), Policy: policyOf(svc, o, say)}
	common.Internal, common.External = scopesOf(&svc.Spec, say)
	served := servedPorts(svc, common, &said)
	if len(served) == 0 {
		return nil, said
	}
	read := readSlices(svc, its, &said)
	var ports []*service.Port
	for _, p := range served {
		ports = append(ports, perFamily(p, fronts, read, place{o.NodeName, zone})...)
	}
	return ports, said
}

// withoutExternalIPs returns the Service as it would be without any.
func withoutExternalIPs(svc *corev1.Service, say say) *corev1.Service {
	if len(svc.Spec.ExternalIPs) == 0 {
		return svc
	}
	say("has spec.externalIPs, which are not served: the feature gate AllowServiceExternalIPs is false; use a load balancer, or set it to true")
	without := *svc
	without.Spec.ExternalIPs = nil
	return &without
}

// servedPorts returns what can be served of a Service's ports, as far as it is the
// same in each family. They begin as common.
func servedPorts(svc *corev1.Service, common service.Port, said *notices) []service.Port {
	say := said.about(reference("Service", svc.Namespace, svc.Name))
	var served []service.Port
	seen := map[service.Name]bool{}
	for _, sp := range svc.Spec.Ports {
		name, nodePort, err := checkPort(svc, sp)
		if err == nil && seen[name] {
			err = fmt.Errorf("another %s port of this Service has that name; rename one", sp.Protocol)
		}
		if err != nil {
			say("port %q (%d) is not served: %v", sp.Name, sp.Port, err)
			if errors.Is(err, errSCTP) {
				said.because(UnsupportedProtocol)
			}
			continue
		}
		seen[name] = true
		if nodePort == 0 && svc.Spec.Type == corev1.ServiceTypeNodePort {
			say("port %q (%d) has no nodePort and nothing assigns one here: set spec.ports[].nodePort", sp.Name, sp.Port)
		}
		p := common
		p.Name, p.Number, p.NodePort = name, uint16(sp.Port), nodePort // #nosec G115 -- checkPort asked isPort
		served = append(served, p)
	}
	return served
}

// perFamily returns a Service port once for each family the Service has.
func perFamily(common service.Port, fronts []frontend, read []backends, here place) []*service.Port {
	ports := make([]*service.Port, 0, len(fronts))
	for _, f := range fronts {
		p := common
		p.Name.Family = f.family
		p.ClusterIP, p.ExternalIPs, p.LoadBalancerIPs = f.clusterIP, f.external, f.loadBalancer
		p.SourceRanges, p.NodePortRanges = f.admits(f.balanced, p), f.admits(f.nodePorts, p)
		if f.nodePorts[f.family].shut {
			p.NodePort = 0
		}
		p.Endpoints = endpointsOf(p.Name, read, here)
		ports = append(ports, &p)
	}
	return ports
}

// checkType says when the type is a word the API does not know.
func checkType(spec *corev1.ServiceSpec, say say) {
	switch spec.Type {
	case "", corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
	default:
		say("spec.type %q is unknown and served as ClusterIP: use ClusterIP, NodePort or LoadBalancer", spec.Type)
	}
}

// ours reports whether a Service is one a proxy on this node serves.
func ours(svc *corev1.Service) bool {
	if _, other := svc.Labels[labelProxyName]; other || svc.Spec.Type == corev1.ServiceTypeExternalName {
		return false
	}
	return primaryClusterIP(&svc.Spec) != corev1.ClusterIPNone
}

// checkObjectName returns why an API server would have refused the Service's
// namespace or name. Both are written into rule comments.
func checkObjectName(svc *corev1.Service) error {
	for _, name := range []string{svc.Namespace, svc.Name} {
		if wrong := validation.IsDNS1123Label(name); len(wrong) > 0 {
			return fmt.Errorf("%q is not a DNS label", name)
		}
	}
	return nil
}

// checkPort returns the name (without family) and the nodePort of a Service
// port, or why it cannot be served.
func checkPort(svc *corev1.Service, sp corev1.ServicePort) (service.Name, uint16, error) {
	name := service.Name{Namespace: svc.Namespace, Service: svc.Name, Port: sp.Name}
	if sp.Name != "" && len(validation.IsDNS1123Label(sp.Name)) > 0 {
		return name, 0, fmt.Errorf("its name is not a DNS label; rename it")
	}
	var err error
	if name.Protocol, err = protocol(sp.Protocol); err != nil {
		return name, 0, err
	}
	if !isPort(sp.Port) {
		return name, 0, fmt.Errorf("its number is not in 1-65535")
	}
	// A type without nodePorts may still carry one: the API server clears it when
	// the type changes, an editor of manifests may not.
	if !hasNodePorts(&svc.Spec) {
		return name, 0, nil
	}
	if sp.NodePort != 0 && !isPort(sp.NodePort) {
		return name, 0, fmt.Errorf("nodePort %d is not in 1-65535", sp.NodePort)
	}
	return name, uint16(sp.NodePort), nil // #nosec G115 -- isPort was asked, or it is 0
}

func hasNodePorts(spec *corev1.ServiceSpec) bool {
	return spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer
}

var errSCTP = errors.New("a userspace proxy cannot relay SCTP; use a kernel proxy for it")

// protocol returns our word for a protocol of the API, or why we have none.
func protocol(p corev1.Protocol) (service.Protocol, error) {
	switch p {
	case corev1.ProtocolTCP:
		return service.TCP, nil
	case corev1.ProtocolUDP:
		return service.UDP, nil
	case corev1.ProtocolSCTP:
		return "", errSCTP
	}
	return "", fmt.Errorf("protocol %q is unknown; use TCP or UDP", p)
}

func isPort(n int32) bool { return 1 <= n && n <= 65535 }

// frontend is what clients of one IP family see of a Service.
type frontend struct {
	family       service.Family
	clusterIP    netip.Addr
	external     []netip.Addr // sorted
	loadBalancer []netip.Addr // sorted
	// Whom load-balancer addresses and node ports admit.
	balanced, nodePorts admissions
}

// admits returns the ranges of p that these admissions are, in the frontend's family.
func (f frontend) admits(by admissions, p service.Port) []netip.Prefix {
	if p.Policy.AcceptProxy && p.Name.Protocol == service.TCP {
		return by.across()
	}
	return by[f.family].ranges
}

// frontends returns one frontend for each family in which the Service has a
// clusterIP, IPv4 first.
func frontends(svc *corev1.Service, say say) []frontend {
	cluster := clusterIPs(&svc.Spec, say)
	external := addressesOf("spec.externalIPs", svc.Spec.ExternalIPs, say)
	var balanced map[service.Family][]netip.Addr
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
		balanced = addressesOf("status.loadBalancer.ingress", ingressIPs(svc), say)
	}
	admissions, nodePorts := admissionOf(&svc.Spec, say), nodePortAdmissionOf(svc, say)
	var fronts []frontend
	for _, family := range []service.Family{service.IPv4, service.IPv6} {
		ip, has := cluster[family]
		if !has {
			continue
		}
		front := frontend{family, ip, external[family], balanced[family], admissions, nodePorts}
		if admissions[family].shut { // also by the way of an externalIP, which nothing guards
			balances := func(ip netip.Addr) bool { return slices.Contains(front.loadBalancer, ip) }
			front.external = slices.DeleteFunc(front.external, balances)
			front.loadBalancer = nil
		}
		fronts = append(fronts, front)
	}
	return fronts
}

// healthCheckNodePort is where load balancers ask for local endpoints: only a Service
// for which it matters where they are has one.
func healthCheckNodePort(svc *corev1.Service) uint16 {
	spec := svc.Spec
	if spec.Type != corev1.ServiceTypeLoadBalancer || spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal || !isPort(spec.HealthCheckNodePort) {
		return 0
	}
	return uint16(spec.HealthCheckNodePort) // #nosec G115 -- isPort was asked
}
