package source

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-splice/kube-splice/service"
)

// cluster is what is known of an API server's objects, and which Services were
// touched since that was last asked. Reflectors write it; the builder reads it.
type cluster struct {
	mu       sync.Mutex // of all that follows
	services table[*corev1.Service]
	slices   table[*discoveryv1.EndpointSlice]
	nodes    table[*corev1.Node]
	slicesOf map[key][]*discoveryv1.EndpointSlice // by Service, known or not
	touched  map[key]struct{}                     // Services
	triggers triggers                             // of the slices that touched them

	// changed holds one value when there is something to take.
	changed chan struct{}
}

// change is a Service to be built again.
type change struct {
	key
	service *corev1.Service // nil: there is none of that name
	slices  []*discoveryv1.EndpointSlice
}

func newCluster() *cluster {
	c := &cluster{
		slicesOf: map[key][]*discoveryv1.EndpointSlice{},
		touched:  map[key]struct{}{},
		triggers: triggers{since: time.Now()},
		changed:  make(chan struct{}, 1),
	}
	c.services = table[*corev1.Service]{mu: &c.mu, trim: trimService, replaced: c.serviceReplaced, wrote: c.nudge}
	c.slices = table[*discoveryv1.EndpointSlice]{mu: &c.mu, trim: trimSlice, replaced: c.sliceReplaced, wrote: c.nudge}
	c.nodes = table[*corev1.Node]{mu: &c.mu, trim: trimNode, replaced: c.nodeReplaced, wrote: c.nudge}
	return c
}

func (c *cluster) nudge() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *cluster) serviceReplaced(before, after *corev1.Service) {
	for _, svc := range []*corev1.Service{before, after} {
		if svc != nil {
			c.touched[keyOf(svc)] = struct{}{}
		}
	}
}

// sliceReplaced keeps slicesOf. A slice whose label changes leaves one Service and
// joins another; one without label belongs to none.
func (c *cluster) sliceReplaced(before, after *discoveryv1.EndpointSlice) {
	if before != nil {
		k := ownerOf(before)
		c.touched[k] = struct{}{}
		c.slicesOf[k] = slices.DeleteFunc(c.slicesOf[k], func(s *discoveryv1.EndpointSlice) bool { return s == before })
		if len(c.slicesOf[k]) == 0 {
			delete(c.slicesOf, k)
		}
	}
	if after != nil {
		k := ownerOf(after)
		c.touched[k] = struct{}{}
		c.slicesOf[k] = append(c.slicesOf[k], after)
		c.triggers.add(before, after)
	}
}

// nodeReplaced touches every Service when the node is in another zone: each may have
// endpoints that hints keep for one.
func (c *cluster) nodeReplaced(before, after *corev1.Node) {
	if zoneOf(before) == zoneOf(after) {
		return
	}
	for k := range c.services.objects {
		c.touched[k] = struct{}{}
	}
}

// ownerOf names the Service a slice belongs to, with an empty name for none.
func ownerOf(slice *discoveryv1.EndpointSlice) key {
	return key{slice.Namespace, slice.Labels[discoveryv1.LabelServiceName]}
}

// listed reports whether Services and slices were both listed; no object at all
// counts.
func (c *cluster) listed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.services.listed && c.slices.listed
}

// hasNode reports whether there is a Node of that name with an address.
func (c *cluster) hasNode(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	node := c.nodes.objects[key{name: name}]
	return node != nil && len(nodeIPs(node, func(string, ...any) {})) > 0
}

// serviceUID returns the UID of a Service, or nothing if there is none of that name.
func (c *cluster) serviceUID(k key) types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	if svc := c.services.objects[k]; svc != nil {
		return svc.UID
	}
	return ""
}

// taken is what changed since the last look.
type taken struct {
	services []change
	node     *corev1.Node      // nil: there is none
	triggers []service.Trigger // what made the changes, as far as it is dated
}

// take returns the Services touched since the last call, and the Node of that name.
// It is one look, so that a zone never comes without the Services it touches.
func (c *cluster) take(node string) taken {
	c.mu.Lock()
	defer c.mu.Unlock()
	changes := make([]change, 0, len(c.touched))
	for k := range c.touched {
		changes = append(changes, change{k, c.services.objects[k], slices.Clone(c.slicesOf[k])})
	}
	clear(c.touched)
	return taken{changes, c.nodes.objects[key{name: node}], c.triggers.take()}
}
