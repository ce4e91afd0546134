package source

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/service"
)

// builder makes each Snapshot out of the last one and of what changed. The result
// is that of [Build] on all objects, at a cost that depends on the change alone, but
// for copying a list of pointers.
type builder struct {
	options   Options
	last      *service.Snapshot
	built     map[key]built
	rivals    *rivals
	conflicts notices // in force
	node      notices // in force
}

// built is what one Service alone became.
type built struct {
	ports []*service.Port // sorted by name
	said  notices
}

func newBuilder(o Options) *builder {
	return &builder{options: o, last: &service.Snapshot{}, built: map[key]built{}, rivals: newRivals()}
}

// apply returns the next Snapshot, which is the last one by pointer if nothing in it
// changed, and the notices that were not in force before. When the node changes its
// zone, the changes must be all Services.
func (b *builder) apply(changes []change, node *corev1.Node) (*service.Snapshot, []Notice) {
	before := slices.Concat(b.conflicts, b.node)
	var after notices
	touched := map[key]struct{}{}
	touchRivals := func() []*service.Port {
		ports := b.rivals.ports()
		for _, p := range ports {
			touched[keyOfPort(p)] = struct{}{}
		}
		return ports
	}
	touchRivals() // a winner may leave
	for _, c := range changes {
		touched[c.key] = struct{}{}
		was, is := b.rebuild(c, zoneOf(node))
		before, after = append(before, was...), append(after, is...)
	}
	b.conflicts, b.node = nil, nil
	settled := newSettled(touchRivals(), &b.conflicts)
	next := &service.Snapshot{Ports: b.replace(touched, settled)}
	describeNode(next, node, &b.node)
	after = append(append(after, b.conflicts...), b.node...)

	if !slices.Equal(next.Ports, b.last.Ports) || !sameNode(next, b.last) {
		b.last = next
	}
	return b.last, after.without(before)
}

// rebuild builds one Service again and returns what was said of it and what is now.
// A port that stays equal stays the same.
func (b *builder) rebuild(c change, zone string) (was, is notices) {
	before := b.built[c.key]
	for _, p := range before.ports {
		b.rivals.remove(p)
	}
	delete(b.built, c.key)
	if c.service == nil {
		return before.said, nil
	}
	ports, said := buildService(c.service, c.slices, b.options, zone)
	slices.SortFunc(ports, comparePorts)
	for i, p := range ports {
		if at, has := slices.BinarySearchFunc(before.ports, p, comparePorts); has && before.ports[at].Equal(p) {
			ports[i] = before.ports[at]
		}
		b.rivals.add(ports[i])
	}
	if len(ports) > 0 || len(said) > 0 {
		b.built[c.key] = built{ports, said}
	}
	return before.said, said
}

// replace returns the ports of the last Snapshot with those of the touched Services
// replaced by what they are now.
func (b *builder) replace(touched map[key]struct{}, settled settled) []*service.Port {
	keys := make([]key, 0, len(touched))
	for k := range touched {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compareKeys)
	old := b.last.Ports
	next := make([]*service.Port, 0, len(old)+len(keys))
	for _, k := range keys {
		at, _ := slices.BinarySearchFunc(old, k, func(p *service.Port, k key) int { return compareKeys(keyOfPort(p), k) })
		next = append(next, old[:at]...)
		old = old[at:]
		its := 0
		for its < len(old) && keyOfPort(old[its]) == k {
			its++
		}
		next = b.appendPorts(next, k, settled, old[:its])
		old = old[its:]
	}
	return append(next, old...)
}

// appendPorts appends what the ports of a Service are now. One that is equal to what
// it was is what it was.
func (b *builder) appendPorts(next []*service.Port, k key, settled settled, were []*service.Port) []*service.Port {
	for _, p := range b.built[k].ports {
		p, served := settled.of(p)
		if !served {
			continue
		}
		if at, has := slices.BinarySearchFunc(were, p, comparePorts); has && were[at].Equal(p) {
			p = were[at]
		}
		next = append(next, p)
	}
	return next
}

// settled is what ports with rivals may have; nil stands for nothing at all.
type settled map[service.Name]*service.Port

func newSettled(rivals []*service.Port, said *notices) settled {
	s := make(settled, len(rivals))
	for _, p := range rivals {
		s[p.Name] = nil
	}
	for _, p := range settleConflicts(rivals, said) {
		s[p.Name] = p
	}
	return s
}

// of returns what p may have, and whether it may be served.
func (s settled) of(p *service.Port) (*service.Port, bool) {
	if granted, hasRival := s[p.Name]; hasRival {
		return granted, granted != nil
	}
	return p, true
}

// without returns the notices that are not among those given, each once.
func (n notices) without(others notices) notices {
	if len(n) == 0 {
		return nil
	}
	known := make(map[Notice]bool, len(others))
	for _, notice := range others {
		known[notice] = true
	}
	var fresh notices
	for _, notice := range n {
		if !known[notice] {
			known[notice] = true
			fresh = append(fresh, notice)
		}
	}
	return fresh
}

func keyOfPort(p *service.Port) key { return key{p.Name.Namespace, p.Name.Service} }

func comparePorts(p, q *service.Port) int { return p.Name.Compare(q.Name) }

func compareKeys(a, b key) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
}
