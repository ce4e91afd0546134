//go:build cluster

package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-splice/kube-splice/lab"
)

const eventObjects = "/api/v1/namespaces/default/events"

// eventsOn returns our Events on an object as "kubectl describe" finds and shows them:
// type, reason, who reports it, and the message. The control plane makes some of its own.
func (s *served) eventsOn(kind, name, uid string) ([]string, error) {
	selector := fmt.Sprintf("involvedObject.kind=%s,involvedObject.name=%s,involvedObject.uid=%s", kind, name, uid)
	var list corev1.EventList
	err := s.try(http.MethodGet, eventObjects+"?fieldSelector="+url.QueryEscape(selector), asJSON, nil, &list)
	var all []string
	for _, e := range list.Items {
		if e.ReportingController != "kube-splice" {
			continue
		}
		if time.Since(e.EventTime.Time) > time.Minute {
			err = fmt.Errorf("an Event of %v", e.EventTime)
		}
		all = append(all, strings.Join([]string{e.Type, e.Reason, e.Action, e.ReportingController, e.Message}, " "))
	}
	return all, err
}

// awaitEvents waits until an object has one Event for each beginning, in any order.
func (s *served) awaitEvents(kind, name, uid string, beginnings ...string) {
	s.t.Helper()
	eventually(s.t, func() error {
		all, err := s.eventsOn(kind, name, uid)
		if err != nil || len(all) != len(beginnings) {
			return fmt.Errorf("%s %s has the Events %q (%v), want %d", kind, name, all, err, len(beginnings))
		}
		for _, want := range beginnings {
			if !strings.Contains("\n"+strings.Join(all, "\n"), "\n"+want) {
				return fmt.Errorf("%s %s has the Events %q, want %q", kind, name, all, want)
			}
		}
		return nil
	})
}

func TestClusterEventsTellOfTheStartAndOfWhatOwnersOfServicesCanMend(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	for _, port := range []string{":30080", ":32000", ":10256", ":10249"} {
		taken, err := s.Node.Listen("tcp", port)
		check(t, err)
		defer func() { _ = taken.Close() }()
	}
	s.useAccount()
	s.allow("services", "endpointslices.discovery.k8s.io", "nodes")
	p := s.start()
	external := func(svc *corev1.Service) { svc.Spec.ExternalIPs = []string{"192.0.2.7"} }
	web := newService("web", "10.96.0.10", nodePort(30080))
	streams := newService("streams", "10.96.0.20", sctp)
	first, second := newService("first", "10.96.0.30", external), newService("second", "10.96.0.31", external)
	balanced := newService("balanced", "10.96.0.40", func(svc *corev1.Service) {
		svc.Spec.Type, svc.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
		svc.Spec.HealthCheckNodePort = 32000
	})
	for _, svc := range []*corev1.Service{web, streams, first, second, balanced} {
		s.create(serviceObjects, svc)
	}
	s.awaitEvents("Node", "node", "node", "Normal Starting StartKubeProxy kube-splice ",
		"Warning FailedToStartProxierHealthcheck StartKubeProxy kube-splice serve health", "Warning FailedToStartMetricServer StartKubeProxy kube-splice serve metrics")
	s.awaitEvents("Service", "balanced", string(balanced.UID),
		`Warning FailedToStartServiceHealthcheck Listen kube-splice node node failed to start healthcheck "default/balanced" on port 32000: `)
	s.awaitEvents("Service", "web", string(web.UID), "Warning PortConflict Listen kube-splice node node cannot open nodePort 30080: another program")
	s.awaitEvents("Service", "streams", string(streams.UID), `Warning UnsupportedProtocol Listen kube-splice port "http" (80) is not served: a userspace proxy cannot relay SCTP`)
	s.awaitEvents("Service", "second", string(second.UID), "Warning PortConflict Listen kube-splice externalIP 192.0.2.7:80/tcp of default/second:http is already that of default/first:http")
	s.awaitEvents("Service", "first", string(first.UID))
	check(t, wantSaid(p, "Event", 0)) // none is refused
	p.finish(0)
}

func TestClusterWithoutTheRightToWriteEventsIsServed(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.serveAll("pod-a")
	s.useAccount()
	s.patch(clusterRoles+"/kube-splice", `{"rules":[{"apiGroups":["","discovery.k8s.io"],"resources":["services","endpointslices","nodes"],"verbs":["list","watch"]}]}`)
	s.create(serviceObjects, newService("streams", "10.96.0.20", sctp))
	p := s.start()
	s.create(serviceObjects, newService("web", "10.96.0.10", selecting))
	s.runPod("web", "web-1", podA)
	s.awaitReady("web", podA)
	soon(t, s.Outside, webAddress, "pod-a")
	eventually(t, func() error { return wantSaid(p, "forbids writing Events", 1) })
	check(t, wantSaid(p, "level=WARN", 2)) // and that SCTP is not served
}

func TestClusterEndpointChangesAndRequestsAreMeasured(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.serveAll("pod-a")
	s.start()
	s.create(serviceObjects, newService("web", "10.96.0.10"))
	s.create(sliceObjects, newSlice("web", []string{podA}, func(slice *discoveryv1.EndpointSlice) {
		slice.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano)}
	}))
	soon(t, s.Outside, webAddress, "pod-a")
	host := fmt.Sprintf("%s:%d", lab.NodeIP, apiPort)
	for _, series := range []string{
		`kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"} 1`,
		`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="30"} 1`,
		`rest_client_requests_total{code="200",host="` + host + `",method="GET"} `,
		`rest_client_requests_total{code="201",host="` + host + `",method="POST"} 1`,
		`rest_client_request_duration_seconds_count{host="` + host + `",verb="POST"} 1`,
	} {
		awaitSeries(t, s.cluster, series)
	}
}
