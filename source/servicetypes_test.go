package source_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

func TestTypeDecidesWhichPortalsCount(t *testing.T) {
	for _, c := range []struct {
		kind     corev1.ServiceType
		nodePort uint16
		balanced int
	}{
		{corev1.ServiceTypeClusterIP, 0, 0},
		{corev1.ServiceTypeNodePort, 30080, 0},
		{corev1.ServiceTypeLoadBalancer, 30080, 1},
	} {
		p := buildQuietly(t, source.Objects{Services: []*corev1.Service{newService("web", "10.96.0.1", typed(c.kind))}}).Ports[0]
		if p.NodePort != c.nodePort || len(p.LoadBalancerIPs) != c.balanced {
			t.Errorf("%s: nodePort %d, %d load-balancer addresses", c.kind, p.NodePort, len(p.LoadBalancerIPs))
		}
	}
}

// typed gives a Service a type, and what Services of any type may have.
func typed(kind corev1.ServiceType) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		svc.Spec.Type = kind
		svc.Spec.Ports[0].NodePort = 30080
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
	}
}

func TestLoadBalancerAddressesAreThoseWhosePacketsTheNodeTakes(t *testing.T) {
	vip, proxy, odd := corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPMode("Other")
	for name, c := range map[string]struct {
		ingress []corev1.LoadBalancerIngress
		want    []string
	}{
		"none yet":           {nil, []string{}},
		"mode absent":        {[]corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}, []string{"192.0.2.1"}},
		"mode VIP":           {[]corev1.LoadBalancerIngress{{IP: "192.0.2.1", IPMode: &vip}}, []string{"192.0.2.1"}},
		"mode Proxy":         {[]corev1.LoadBalancerIngress{{IP: "192.0.2.1", IPMode: &proxy}}, []string{}},
		"mode unknown":       {[]corev1.LoadBalancerIngress{{IP: "192.0.2.1", IPMode: &odd}}, []string{}},
		"host name alone":    {[]corev1.LoadBalancerIngress{{Hostname: "lb.example"}}, []string{}},
		"host name as well":  {[]corev1.LoadBalancerIngress{{Hostname: "lb.example", IP: "192.0.2.1"}}, []string{"192.0.2.1"}},
		"several, one twice": {[]corev1.LoadBalancerIngress{{IP: "192.0.2.9"}, {IP: "192.0.2.1", IPMode: &vip}, {IP: "192.0.2.5", IPMode: &proxy}, {IP: "192.0.002.9"}}, []string{"192.0.2.1", "192.0.2.9"}},
		"other family":       {[]corev1.LoadBalancerIngress{{IP: "2001:db8::1"}}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			svc := newService("web", "10.96.0.1", balanced(""), func(svc *corev1.Service) {
				svc.Status.LoadBalancer.Ingress = c.ingress
				svc.Spec.AllocateLoadBalancerNodePorts = new(false)
			})
			p := buildQuietly(t, source.Objects{Services: []*corev1.Service{svc}}).Ports[0]
			equal(t, "load-balancer addresses", texts(p.LoadBalancerIPs), c.want)
			if p.NodePort != 0 {
				t.Errorf("nodePort %d although none is allocated", p.NodePort)
			}
		})
	}
}

// TestLiveServiceChangesItsType goes from each type to each other one. Service zoo
// wants the node port of web, and has it as long as web has none.
func TestLiveServiceChangesItsType(t *testing.T) {
	const zoo = "zoo clusterIP 10.96.0.9"
	want := map[corev1.ServiceType][]string{
		corev1.ServiceTypeExternalName: {zoo, "zoo nodePort"},
		corev1.ServiceTypeClusterIP:    {"web clusterIP 10.96.0.1", zoo, "zoo nodePort"},
		corev1.ServiceTypeNodePort:     {"web clusterIP 10.96.0.1", "web nodePort", zoo},
		corev1.ServiceTypeLoadBalancer: {"web clusterIP 10.96.0.1", "web loadBalancer 198.51.100.1", "web nodePort", zoo},
	}
	api := newAPIServer(t, false)
	api.put(newService("zoo", "10.96.0.9", nodePort(30080)), newSlice("web", "w", []string{"10.244.1.1"}))
	f := watchAPI(t, source.Kubernetes{Config: api.config()})
	f.first(t, "zoo=")
	const e, c, n, l = corev1.ServiceTypeExternalName, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer
	for _, kind := range []corev1.ServiceType{c, e, n, e, l, c, n, c, l, n, l, e, c} {
		api.put(newService("web", "10.96.0.1", typed(kind)))
		text := "web=10.244.1.1 zoo="
		if kind == e {
			text = "zoo="
		}
		equal(t, string(kind), portals(f.first(t, text)), want[kind])
	}
}

func TestMoreThanAThousandEndpointsAreServed(t *testing.T) {
	var its []*discoveryv1.EndpointSlice
	for i := range 15 {
		var pods []string
		for j := range 100 {
			pods = append(pods, fmt.Sprintf("10.244.%d.%d", i, j+1))
		}
		its = append(its, newSlice("web", fmt.Sprint("web-", i), pods))
	}
	p, notices := webPort(its...)
	equal(t, "notices", notices, nil)
	if len(p.Eligible(service.Cluster)) != 1500 {
		t.Errorf("%d endpoints", len(p.Endpoints))
	}
}
