package source

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-splice/kube-splice/service"
)

// triggers gathers the times that EndpointSlices give as those of the changes that
// caused them (annotation endpoints.kubernetes.io/last-change-trigger-time).
//
// As in kube-proxy, what a slice says at its deletion does not count, because it is
// the time of an earlier change, and neither does a time before our start.
type triggers struct {
	since time.Time
	all   []service.Trigger
}

// add takes in the time of a slice that came or changed; before is nil if it came.
func (t *triggers) add(before, after *discoveryv1.EndpointSlice) {
	text := after.Annotations[corev1.EndpointsLastChangeTriggerTime]
	if before != nil && before.Annotations[corev1.EndpointsLastChangeTriggerTime] == text {
		return // another change, which nobody dated
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || !at.After(t.since) || len(t.all) == service.MostTriggers {
		return
	}
	for _, family := range []service.Family{service.IPv4, service.IPv6} {
		if string(after.AddressType) == family.String() {
			t.all = append(t.all, service.Trigger{Family: family, At: at})
		}
	}
}

// take returns what was gathered since the last call.
func (t *triggers) take() []service.Trigger {
	all := t.all
	t.all = nil
	return all
}
