package source_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

// trafficPolicies sets the policies of a Service; an empty one is absent.
func trafficPolicies(internal corev1.ServiceInternalTrafficPolicy, external corev1.ServiceExternalTrafficPolicy) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		svc.Spec.ExternalTrafficPolicy = external
		if internal != "" {
			svc.Spec.InternalTrafficPolicy = &internal
		}
	}
}

// scopes returns what each portal of a port gives its clients: "nodePort outside Local".
func scopes(p *service.Port) []string {
	var list []string
	for _, portal := range p.Portals() {
		list = append(list, portal.Kind.String()+" "+portal.Clients.String()+" "+portal.Scope.String())
	}
	return list
}

func TestTrafficPoliciesDecideWhoGetsWhichEndpoints(t *testing.T) {
	const clusterAll, clusterLocal = "clusterIP anyone Cluster", "clusterIP anyone Local"
	for name, c := range map[string]struct {
		edits []func(*corev1.Service)
		want  []string
	}{
		"absent":               {[]func(*corev1.Service){trafficPolicies("", "")}, []string{clusterAll}},
		"internal Cluster":     {[]func(*corev1.Service){trafficPolicies("Cluster", "")}, []string{clusterAll}},
		"internal Local":       {[]func(*corev1.Service){trafficPolicies("Local", "")}, []string{clusterLocal}},
		"internal, node port":  {[]func(*corev1.Service){trafficPolicies("Local", "Cluster"), nodePort(30080)}, []string{clusterLocal, "nodePort anyone Cluster"}},
		"external, node port":  {[]func(*corev1.Service){trafficPolicies("Cluster", "Local"), nodePort(30080)}, []string{clusterAll, "nodePort inside Cluster", "nodePort outside Local"}},
		"both, node port":      {[]func(*corev1.Service){trafficPolicies("Local", "Local"), nodePort(30080)}, []string{clusterLocal, "nodePort inside Cluster", "nodePort outside Local"}},
		"external, externalIP": {[]func(*corev1.Service){trafficPolicies("", "Local"), externalIPs("192.0.2.1")}, []string{clusterAll, "externalIP inside Cluster", "externalIP outside Local"}},
		"external, balanced": {[]func(*corev1.Service){trafficPolicies("", "Local"), nodePort(30080), balanced("192.0.2.1")},
			[]string{clusterAll, "loadBalancer inside Cluster", "loadBalancer outside Local", "nodePort inside Cluster", "nodePort outside Local"}},
		"external, balanced without node port": {[]func(*corev1.Service){trafficPolicies("", "Local"), balanced("192.0.2.1")},
			[]string{clusterAll, "loadBalancer inside Cluster", "loadBalancer outside Local"}},
	} {
		t.Run(name, func(t *testing.T) {
			snapshot := buildQuietly(t, source.Objects{Services: []*corev1.Service{newService("web", "10.96.0.1", c.edits...)}})
			equal(t, "portals", scopes(snapshot.Ports[0]), c.want)
		})
	}
}

func TestExternalTrafficPolicyCountsOnlyWhereClientsOutsideCanComeIn(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*corev1.Service)
		want service.Scope
	}{
		"clusterIP alone":                 {func(*corev1.Service) {}, service.Cluster},
		"clusterIP and externalIP":        {externalIPs("192.0.2.1"), service.Local},
		"node port":                       {nodePort(30080), service.Local},
		"load balancer that is not ready": {func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeLoadBalancer }, service.Local},
	} {
		svc := newService("web", "10.96.0.1", trafficPolicies("", "Local"), c.edit)
		if p := buildQuietly(t, source.Objects{Services: []*corev1.Service{svc}}).Ports[0]; p.External != c.want {
			t.Errorf("%s: %v, want %v", name, p.External, c.want)
		}
	}
}
