package source

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// merger puts together what several files hold.
type merger struct {
	nodeName string
	objects  Objects
	said     notices
	from     map[identity]string // the file an object came from
}

// identity tells objects apart.
type identity struct {
	kind            reflect.Type
	namespace, name string
}

func newMerger(nodeName string) *merger {
	return &merger{nodeName: nodeName, from: map[identity]string{}}
}

// add takes in the contents of the next file. An object already there stays.
func (m *merger) add(file string, c contents) {
	for _, kind := range c.skipped {
		m.said.about(reference("kind", kind.GroupVersion().String(), kind.Kind))("is not used here; its objects are skipped")
	}
	for _, o := range c.objects {
		id := identity{reflect.TypeOf(o), o.GetNamespace(), o.GetName()}
		say := m.said.about(reference(id.kind.Elem().Name(), id.namespace, id.name))
		first, twice := m.from[id]
		switch {
		case id.name == "":
			say("in %s has no metadata.name and is skipped: give it one", file)
		case twice && first == file:
			say("is in %s more than once; the first one counts: remove the others", file)
		case twice:
			say("is in %s and again in %s; the one in %s counts: remove the other", first, file, first)
		default:
			m.from[id] = file
			m.keep(o)
		}
	}
}

func (m *merger) keep(o object) {
	switch o := o.(type) {
	case *corev1.Service:
		m.objects.Services = append(m.objects.Services, o)
	case *discoveryv1.EndpointSlice:
		m.objects.Slices = append(m.objects.Slices, o)
	//lint:ignore SA1019 old manifests still hold Endpoints
	case *corev1.Endpoints:
		m.objects.Endpoints = append(m.objects.Endpoints, o)
	case *corev1.Node:
		if o.Name == m.nodeName {
			m.objects.Node = o
		}
	}
}
