package source_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

// triggered dates the change that an EndpointSlice came of.
func triggered(at time.Time) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) {
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: at.Format(time.RFC3339Nano)}
	}
}

func wantTriggers(t *testing.T, s *service.Snapshot, want ...service.Trigger) {
	t.Helper()
	if len(s.Triggers) != len(want) {
		t.Fatalf("triggers %v, want %v", s.Triggers, want)
	}
	for i, trigger := range s.Triggers {
		if trigger.Family != want[i].Family || !trigger.At.Equal(want[i].At) {
			t.Errorf("trigger %v, want %v", trigger, want[i])
		}
	}
}

func TestSnapshotsSayWhatEndpointChangeTriggeredThem(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t, false)
	api.put(newService("web", "10.96.0.1", func(svc *corev1.Service) { svc.Spec.ClusterIPs = []string{"10.96.0.1", "fd00:96::1"} }),
		newSlice("web", "web-a", []string{"10.244.1.1"}, triggered(time.Now().Add(-time.Hour))))
	f := watchAPI(t, source.Kubernetes{Config: api.config()})
	wantTriggers(t, f.first(t, "web=10.244.1.1 web=")) // it was before our start

	first, second := time.Now(), time.Now().Add(time.Nanosecond)
	api.put(newSlice("web", "web-a", []string{"10.244.1.2"}, triggered(first)))
	wantTriggers(t, f.first(t, "web=10.244.1.2 web="), service.Trigger{Family: service.IPv4, At: first})
	ipv6 := newSlice("web", "web-6", []string{"fd00:244::1"}, triggered(second), func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeIPv6 })
	api.put(ipv6)
	wantTriggers(t, f.first(t, "web=10.244.1.2 web=fd00:244::1"), service.Trigger{Family: service.IPv6, At: second})

	api.put(newSlice("web", "web-a", []string{"10.244.1.3"}, triggered(first)))
	wantTriggers(t, f.first(t, "web=10.244.1.3 web=fd00:244::1")) // the date is an earlier change's
	api.put(newSlice("web", "web-a", []string{"10.244.1.4"}))
	wantTriggers(t, f.first(t, "web=10.244.1.4 web=fd00:244::1"))
	api.put(newSlice("web", "web-a", []string{"10.244.1.5"}, func(s *discoveryv1.EndpointSlice) {
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "yesterday"}
	}))
	wantTriggers(t, f.first(t, "web=10.244.1.5 web=fd00:244::1"))
	api.remove(ipv6)
	wantTriggers(t, f.first(t, "web=10.244.1.5 web="))
}
