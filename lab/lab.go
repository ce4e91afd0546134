package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
)

// Config says how much of the standard lab to build. The zero Config is all of
// it, in anonymous namespaces.
type Config struct {
	// Pods is the number of server pods on the first node, 1 to 3; 0 means 3.
	Pods int
	// OneNode leaves out node2 and its pods.
	OneNode bool
	// Prefix, when it is not empty, binds every namespace to /run/netns/PREFIXname,
	// where "ip netns exec" finds it.
	Prefix string
}

// Lab is one cluster of network namespaces.
type Lab struct {
	Node    *Namespace
	Node2   *Namespace // nil with Config.OneNode
	Router  *Namespace
	Outside *Namespace
	Pods    []*Pod // the server pods in the order of their addresses, then client

	namespaces []*Namespace // all of them, in the order they were made
}

// Pod is one pod: a namespace with a single interface, eth0, on its node's bridge.
type Pod struct {
	*Namespace
	Addr4, Addr6 netip.Addr
	Node         *Namespace
}

// New builds a lab. The caller closes it. It needs the privileges that a program
// has after [Isolate], and touches no namespace but those that it makes.
func New(config Config) (*Lab, error) {
	if config.Pods < 0 || config.Pods > 3 {
		return nil, fmt.Errorf("build the lab: %d pods asked for, a lab has 1 to 3", config.Pods)
	}
	l := &Lab{}
	if err := l.build(config); err != nil {
		return nil, errors.Join(fmt.Errorf("build the lab: %w", err), l.Close())
	}
	return l, nil
}

func (l *Lab) build(config Config) error {
	plan := plan(config)
	if err := l.makeNamespaces(plan, config.Prefix); err != nil {
		return err
	}
	w, err := newWiring(l.namespaces)
	if err != nil {
		return err
	}
	defer w.close()
	if err := w.connect(plan); err != nil {
		return err
	}
	l.introduce(plan)
	return nil
}

// makeNamespaces makes the namespaces of every machine at the same time: most of
// the work is the kernel's, and each takes it some milliseconds.
func (l *Lab) makeNamespaces(plan []machine, prefix string) error {
	l.namespaces = make([]*Namespace, len(plan))
	errs := make([]error, len(plan))
	var making sync.WaitGroup
	for i, m := range plan {
		making.Go(func() {
			l.namespaces[i], errs[i] = newMachine(m, prefix)
		})
	}
	making.Wait()
	return errors.Join(errs...)
}

// newMachine makes the namespace of m, ready for its interfaces.
func newMachine(m machine, prefix string) (*Namespace, error) {
	n, err := NewNamespace(m.name)
	if err != nil {
		return nil, err
	}
	err = n.Do(func() error { return writeSysctls(m.forwards) })
	if err == nil && prefix != "" {
		err = n.bind(prefix + m.name)
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// introduce fills in the exported fields.
func (l *Lab) introduce(plan []machine) {
	byName := map[string]*Namespace{}
	for _, n := range l.namespaces {
		byName[n.Name] = n
	}
	l.Node, l.Node2 = byName[node], byName[node2]
	l.Router, l.Outside = byName[router], byName[outside]
	for _, m := range plan {
		if m.pod {
			up := m.links[0]
			l.Pods = append(l.Pods, &Pod{
				Namespace: byName[m.name],
				Addr4:     up.addrs[0].Addr(),
				Addr6:     up.addrs[1].Addr(),
				Node:      byName[up.peer],
			})
		}
	}
}

// Pod returns the pod of that name, or nil when the lab has none.
func (l *Lab) Pod(name string) *Pod {
	for _, p := range l.Pods {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Close removes every namespace of the lab with all that is in it. Programs
// started in the lab are to be ended, and sockets closed, before: a namespace
// lives on while one is left inside. Further calls return what the first returned.
func (l *Lab) Close() error {
	var errs []error
	for _, n := range l.namespaces {
		if n != nil {
			errs = append(errs, n.Close())
		}
	}
	return errors.Join(errs...)
}
