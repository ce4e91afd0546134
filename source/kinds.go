package source

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// newScheme returns the kinds we use, alone and in lists.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	//lint:ignore SA1019 old manifests still hold Endpoints
	endpoints, endpointsList := &corev1.Endpoints{}, &corev1.EndpointsList{}
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.List{}, endpoints, endpointsList,
		&corev1.Service{}, &corev1.ServiceList{}, &corev1.Node{}, &corev1.NodeList{})
	scheme.AddKnownTypes(discoveryv1.SchemeGroupVersion, &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{})
	return scheme
}

// usedKinds are the kinds we use, alone.
var usedKinds = []schema.GroupVersionKind{
	corev1.SchemeGroupVersion.WithKind("Service"),
	discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
	corev1.SchemeGroupVersion.WithKind(kindEndpoints),
	corev1.SchemeGroupVersion.WithKind("Node"),
}

// meant returns the kind we use for which another one is probably a slip: its
// plural, a misspelling, or another version of it. Kinds of groups of which we use
// nothing are what they say; Knative, too, has a Service.
func meant(kind schema.GroupVersionKind) (used schema.GroupVersionKind, ok bool) {
	if kind.Group != corev1.GroupName && kind.Group != discoveryv1.GroupName {
		return used, false
	}
	for _, used := range usedKinds {
		if distance(strings.ToLower(kind.Kind), strings.ToLower(used.Kind)) <= len(used.Kind)/3 {
			return used, true
		}
	}
	return used, false
}

// distance returns how many letters must be added, removed or replaced to make b of
// a (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
