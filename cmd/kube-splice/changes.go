package main

import (
	"slices"

	"github.com/kube-splice/kube-splice/service"
)

// changes counts what differs between two Snapshots: Service ports that came, went or
// are reached or treated otherwise, and Service ports whose endpoints are others.
type changes struct{ services, endpoints int }

// changesBetween compares two Snapshots; before is nil before the first. Ports that
// did not change cost a comparison of pointers.
func changesBetween(before, after *service.Snapshot) (c changes) {
	if before == nil {
		before = &service.Snapshot{}
	}
	old := before.Ports
	for _, p := range after.Ports {
		for len(old) > 0 && old[0].Name.Compare(p.Name) < 0 {
			c.add(old[0], nil)
			old = old[1:]
		}
		if len(old) > 0 && old[0].Name == p.Name {
			c.add(old[0], p)
			old = old[1:]
		} else {
			c.add(nil, p)
		}
	}
	for _, p := range old {
		c.add(p, nil)
	}
	return c
}

// add counts how one port differs; nil stands for one that is not there.
func (c *changes) add(before, after *service.Port) {
	if before == after {
		return
	}
	var was, is service.Port
	if before != nil {
		was = *before
	}
	if after != nil {
		is = *after
	}
	if !slices.Equal(was.Endpoints, is.Endpoints) {
		c.endpoints++
	}
	was.Endpoints, is.Endpoints = nil, nil
	if !was.Equal(&is) {
		c.services++
	}
}
