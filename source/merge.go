package source

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// merger puts together what several files hold.
type merger struct {
	nodeName string
	objects  Objects
	nodes    int                 // Node objects, ours or not
	said     notices             // of single objects
	skipped  notices             // of kinds we have no use for
	from     map[identity]string // the file an object came from
	files    map[string]string   // the same, by the Object of a Notice; also the first file of a kind skipped
}

// identity tells objects apart.
type identity struct {
	kind            reflect.Type
	namespace, name string
}

func newMerger(nodeName string) *merger {
	return &merger{nodeName: nodeName, from: map[identity]string{}, files: map[string]string{}}
}

// add takes in the contents of the next file. An object already there stays.
func (m *merger) add(file string, c contents) {
	for _, kind := range c.skipped {
		m.skip(file, kind)
	}
	for _, o := range c.objects {
		id := identity{reflect.TypeOf(o), o.GetNamespace(), o.GetName()}
		name := reference(id.kind.Elem().Name(), id.namespace, id.name)
		say := m.said.about(name)
		first, twice := m.from[id]
		switch {
		case id.name == "":
			say("in %s has no metadata.name and is skipped: give it one", file)
		case twice && first == file:
			say("is in %s more than once; the first one counts: remove the others", file)
		case twice:
			say("is in %s and again in %s; the one in %s counts: remove the other", first, file, first)
		default:
			m.from[id], m.files[name] = file, file
			m.keep(o)
		}
	}
}

// skip says that objects of a kind are not used.
func (m *merger) skip(file string, kind schema.GroupVersionKind) {
	name := kind.GroupVersion().String() + "/" + kind.Kind
	if _, said := m.files[name]; said {
		return
	}
	m.files[name] = file
	hint := ""
	if used, slip := meant(kind); slip {
		hint = fmt.Sprintf("; is %s of %s meant?", used.Kind, used.GroupVersion())
	}
	m.skipped.about(name)("objects of this kind are not used and skipped%s", hint)
}

// nodeless reports whether there are Nodes, but not the one of this node.
func (m *merger) nodeless() bool { return m.nodeName != "" && m.nodes > 0 && m.objects.Node == nil }

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
		m.nodes++
		if o.Name == m.nodeName {
			m.objects.Node = o
		}
	}
}
