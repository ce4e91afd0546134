package source_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

// newService returns Service default/name with one port, http 80/TCP.
func newService(name, clusterIP string, edits ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			Type:      corev1.ServiceTypeClusterIP,
			ClusterIP: clusterIP,
			Ports:     []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	for _, edit := range edits {
		edit(svc)
	}
	return svc
}

// newSlice returns a slice of Service default/svc with port http 8080/TCP, whose
// family is that of the first address.
func newSlice(svc, name string, addresses []string, edits ...func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: svc},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
	if len(addresses) > 0 && strings.Contains(addresses[0], ":") {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, a := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	for _, edit := range edits {
		edit(slice)
	}
	return slice
}

// build builds from nothing.
func build(in source.Objects) (*service.Snapshot, []source.Notice) {
	return source.Build(nil, in, source.Options{})
}

// buildQuietly builds from nothing and expects that nothing is wrong.
func buildQuietly(t *testing.T, in source.Objects) *service.Snapshot {
	t.Helper()
	snapshot, notices := build(in)
	if len(notices) > 0 {
		t.Errorf("unexpected notices: %v", notices)
	}
	return snapshot
}

// tcp names an IPv4 TCP port of a Service in namespace default.
func tcp(svc, port string) service.Name {
	return service.Name{Namespace: "default", Service: svc, Port: port, Protocol: service.TCP, Family: service.IPv4}
}

// names returns the ports of a Snapshot, such as "default/web:http tcp IPv4".
func names(s *service.Snapshot) []string {
	var list []string
	for _, p := range s.Ports {
		list = append(list, p.Name.String()+" "+string(p.Name.Protocol)+" "+p.Name.Family.String())
	}
	return list
}

// addrs returns the endpoints of a port as text, those not ready in parentheses.
func addrs(p *service.Port) []string {
	list := []string{}
	if p == nil {
		return nil
	}
	for _, e := range p.Endpoints {
		if e.Ready {
			list = append(list, e.Addr.String())
		} else {
			list = append(list, "("+e.Addr.String()+")")
		}
	}
	return list
}

func texts(ips []netip.Addr) []string {
	list := []string{}
	for _, ip := range ips {
		list = append(list, ip.String())
	}
	return list
}

func equal[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}

// onlyNotice expects one notice, about object, with all of the given texts in it.
func onlyNotice(t *testing.T, notices []source.Notice, object string, contains ...string) {
	t.Helper()
	if len(notices) != 1 {
		t.Fatalf("got %d notices, want 1: %v", len(notices), notices)
	}
	if notices[0].Object != object {
		t.Errorf("notice about %q, want %q", notices[0].Object, object)
	}
	for _, text := range contains {
		if !strings.Contains(notices[0].Text, text) {
			t.Errorf("notice %q does not say %q", notices[0].Text, text)
		}
	}
	if strings.ContainsAny(notices[0].Object+notices[0].Text, "\n\r\x1b") {
		t.Errorf("notice is not one clean line: %q", notices[0])
	}
}
