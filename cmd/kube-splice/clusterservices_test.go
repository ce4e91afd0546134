//go:build cluster

package main

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// wantReached demands that a Service's endpoints answer by each of its addresses,
// from a pod and from outside.
func (s *served) wantReached(addresses []string, pods ...string) {
	s.t.Helper()
	for _, address := range addresses {
		for _, from := range []*lab.Namespace{s.client(), s.Outside} {
			within(s.t, 2*time.Second, func() error {
				if who, err := ask(from, address); err != nil {
					return fmt.Errorf("%s answers %q: %w", address, who, err)
				}
				return nil
			})
			count := answers(s.t, from, address, 3*len(pods))
			for _, pod := range pods {
				if count[pod] != 3 {
					s.t.Errorf("from %s, %s was answered by %v, want 3 answers of each of %v", from.Name, address, count, pods)
				}
			}
		}
	}
}

// Before the first Service comes, the proxy is ready.
func TestClusterServicesReachTheReadyPodsThatTheySelect(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.serveAll("pod-a", "pod-b", "pod-c")
	s.start()
	web := newService("web", "10.96.0.10", selecting, nodePort(30080))
	s.create(serviceObjects, web)
	other := newService("other", "10.96.0.20", selecting)
	s.create(serviceObjects, other)
	s.runPod("web", "web-1", podA)
	s.runPod("web", "web-2", podB)
	s.runPod("other", "other-1", podC)
	s.awaitReady("web", podA, podB)
	s.awaitReady("other", podC)
	webAddresses := []string{"10.96.0.10:80", lab.NodeIP + ":30080"}
	s.wantReached(webAddresses, "pod-a", "pod-b")
	s.wantReached([]string{"10.96.0.20:80"}, "pod-c")

	s.setReady("web-1", false)
	s.awaitReady("web", podB)
	soonOnly(t, s.Outside, webAddress, "pod-b")
	s.wantReached(webAddresses, "pod-b")

	s.setReady("web-1", true)
	s.awaitReady("web", podA, podB)
	soon(t, s.Outside, webAddress, "pod-a")
	s.wantReached(webAddresses, "pod-a", "pod-b")

	s.delete(serviceObjects + "/web")
	within(t, 2*time.Second, func() error { return unserved(s.Outside, webAddress) })
	s.wantReached([]string{"10.96.0.20:80"}, "pod-c")
}

func TestClusterPodsThatArePublishedBeforeTheyAreReadyAreServed(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.serveAll("pod-a")
	s.start()
	s.create(serviceObjects, newService("web", "10.96.0.10", selecting, func(web *corev1.Service) {
		web.Spec.PublishNotReadyAddresses = true
	}))
	s.runPod("web", "web-1", podA)
	s.setReady("web-1", false)
	s.awaitReady("web", podA)
	s.wantReached([]string{webAddress}, "pod-a")
	s.delete(podObjects + "/web-1")
	s.awaitReady("web", podA)
	s.wantReached([]string{webAddress}, "pod-a")

	s.patch(serviceObjects+"/web", `{"spec":{"publishNotReadyAddresses":false}}`)
	s.awaitReady("web")
	within(t, patience, func() error { return unserved(s.Outside, webAddress) })
}

func TestClusterChangesWithinTheUpdateIntervalAreTakenTogether(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.serveAll("pod-a", "pod-b")
	s.create(serviceObjects, newService("web", "10.96.0.10", selecting))
	s.runPod("web", "web-1", podA)
	s.runPod("web", "web-2", podB)
	s.awaitReady("web", podA, podB)
	const interval = 4 * time.Second
	s.start("--min-update-interval", interval.String())
	time.Sleep(interval) // a long quiet

	s.setReady("web-1", false)
	s.awaitReady("web", podB)
	soonOnly(t, s.Outside, webAddress, "pod-b")
	began := time.Now()
	s.setReady("web-1", true)
	s.setReady("web-2", false)
	s.awaitReady("web", podA)
	within(t, 2*interval, func() error {
		who, err := ask(s.Outside, webAddress)
		if err == nil && who != "pod-a" {
			err = fmt.Errorf("answered by %s", who)
		}
		return err
	})
	if took := time.Since(began); took < interval/2 {
		t.Errorf("the next changes were taken after %v, want nearly %v", took, interval)
	}
}

// soonOnly waits until a pod has all new connections, as it must in a second.
func soonOnly(t testing.TB, from *lab.Namespace, address, pod string) {
	t.Helper()
	within(t, time.Second, func() error {
		for range 4 {
			if who, err := ask(from, address); err != nil || who != pod {
				return fmt.Errorf("%s is answered by %q (%v), want %s", address, who, err, pod)
			}
		}
		return nil
	})
}
