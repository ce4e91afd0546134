package source_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/source"
)

func TestExternalIPsCountAsNoneWhereTheyAreOff(t *testing.T) {
	const address = "192.0.2.1"
	for name, c := range map[string]struct {
		off  bool
		edit func(*corev1.Service)
		want []string // portals
		said int
	}{
		"on":                {false, externalIPs(address), []string{"clusterIP anyone Cluster", "externalIP anyone Cluster"}, 0},
		"off":               {true, externalIPs(address), []string{"clusterIP anyone Cluster"}, 1},
		"off, several":      {true, externalIPs(address, "2001:db8::1", "nonsense"), []string{"clusterIP anyone Cluster"}, 1},
		"off, without any":  {true, func(*corev1.Service) {}, []string{"clusterIP anyone Cluster"}, 0},
		"off, node port":    {true, func(svc *corev1.Service) { nodePort(30080)(svc); externalIPs(address)(svc) }, []string{"clusterIP anyone Cluster", "nodePort anyone Cluster"}, 1},
		"off, balanced":     {true, func(svc *corev1.Service) { balanced(address)(svc); externalIPs(address)(svc) }, []string{"clusterIP anyone Cluster", "loadBalancer anyone Cluster"}, 1},
		"off, local policy": {true, func(svc *corev1.Service) { trafficPolicies("", "Local")(svc); externalIPs(address)(svc) }, []string{"clusterIP anyone Cluster"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			svc := newService("web", "10.96.0.1", c.edit)
			given := len(svc.Spec.ExternalIPs)
			snapshot, notices := source.Build(nil, source.Objects{Services: []*corev1.Service{svc}}, source.Options{NoExternalIPs: c.off})
			equal(t, "portals", scopes(snapshot.Ports[0]), c.want)
			if len(notices) != c.said || c.said > 0 && !strings.Contains(notices[0].Text, "AllowServiceExternalIPs") {
				t.Errorf("notices %v, want %d that name the feature gate", notices, c.said)
			}
			if len(svc.Spec.ExternalIPs) != given {
				t.Error("the object was edited, which others hold too")
			}
		})
	}
}

func TestExternalIPsOfAnAPIServerCountAsNoneWhereTheyAreOff(t *testing.T) {
	api := newAPIServer(t, false)
	api.put(newService("web", "10.96.0.1", externalIPs("192.0.2.1")))
	f := watchAPI(t, source.Kubernetes{Config: api.config(), NoExternalIPs: true})
	equal(t, "portals", scopes(f.first(t, "web=").Ports[0]), []string{"clusterIP anyone Cluster"})
}
