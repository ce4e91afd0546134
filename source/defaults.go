package source

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// setDefaults fills in what the API server fills in when an object is created, as
// far as Build reads it (pkg/apis/core/v1 and pkg/apis/discovery/v1 defaults.go
// of Kubernetes). The API types themselves carry no defaults.
func setDefaults(o object) {
	if _, clusterScoped := o.(*corev1.Node); !clusterScoped && o.GetNamespace() == "" {
		o.SetNamespace(metav1.NamespaceDefault)
	}
	switch o := o.(type) {
	case *corev1.Service:
		setServiceDefaults(&o.Spec)
	case *discoveryv1.EndpointSlice:
		for i := range o.Ports {
			setSlicePortDefaults(&o.Ports[i])
		}
	//lint:ignore SA1019 old manifests still hold Endpoints
	case *corev1.Endpoints:
		for _, subset := range o.Subsets {
			for i := range subset.Ports {
				orDefault(&subset.Ports[i].Protocol, corev1.ProtocolTCP)
			}
		}
	}
}

func setServiceDefaults(spec *corev1.ServiceSpec) {
	orDefault(&spec.Type, corev1.ServiceTypeClusterIP)
	orDefault(&spec.SessionAffinity, corev1.ServiceAffinityNone)
	for i := range spec.Ports {
		orDefault(&spec.Ports[i].Protocol, corev1.ProtocolTCP)
	}
}

// setSlicePortDefaults gives a port without name the empty one, which is how it
// meets the unnamed port of its Service.
func setSlicePortDefaults(p *discoveryv1.EndpointPort) {
	if p.Name == nil {
		p.Name = new("")
	}
	if p.Protocol == nil {
		p.Protocol = new(corev1.ProtocolTCP)
	}
}

// orDefault sets an absent value.
func orDefault[T ~string](value *T, def T) {
	if *value == "" {
		*value = def
	}
}
