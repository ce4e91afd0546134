//go:build cluster

package main

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-splice/kube-splice/lab"
)

const balancerAddress = "10.96.0.50"

// newBalanced is a cluster of two nodes and a Service of type LoadBalancer that has a
// pod on each. The result is the Service as the API server completed it.
func newBalanced(t *testing.T, edit ...func(*corev1.Service)) (*served, *corev1.Service) {
	t.Helper()
	s := newServedIn(newTwoNodes(t))
	s.create(nodeObjects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node2"}})
	web := newService("web", "10.96.0.10", append(edit, selecting, func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	})...)
	s.create(serviceObjects, web)
	s.patch(serviceObjects+"/web/status", `{"status":{"loadBalancer":{"ingress":[{"ip":"`+balancerAddress+`"}]}}}`)
	s.runPodOn("node", "web", "web-local", byIPv4.pods[localPod])
	s.runPodOn("node2", "web", "web-remote", byIPv4.pods[remotePod])
	s.awaitReady("web", byIPv4.pods[localPod], byIPv4.pods[remotePod])
	return s, web
}

func TestClusterTrafficPolicyLocalAndItsHealthPort(t *testing.T) {
	t.Parallel()
	s, web := newBalanced(t, func(svc *corev1.Service) { svc.Spec.ExternalTrafficPolicy = exLocal })
	s.start("--cluster-cidr", "10.244.0.0/16")
	nodePort := net.JoinHostPort(lab.NodeIP, strconv.Itoa(int(web.Spec.Ports[0].NodePort)))
	health := int(web.Spec.HealthCheckNodePort)
	if health == 0 {
		t.Fatal("the API server gave the Service no healthCheckNodePort")
	}
	want := func(from *lab.Namespace, address, pods string) {
		t.Helper()
		within(t, 3*time.Second, func() error {
			if got := whoAnswers(from, address); got != pods {
				return fmt.Errorf("from %s, %s is answered by %s, want %s", from.Name, address, got, pods)
			}
			return nil
		})
	}
	for _, address := range []string{nodePort, balancerAddress + ":80"} {
		want(s.Outside, address, localPod)
		want(s.client(), address, bothPods)
		want(s.Node, address, bothPods)
	}
	want(s.Outside, webAddress, bothPods)
	within(t, patience, func() error { return s.wantProbe(health, http.StatusOK) })

	s.removeByForce("web-local")
	s.awaitReady("web", byIPv4.pods[remotePod])
	within(t, 3*time.Second, func() error { return s.wantProbe(health, http.StatusServiceUnavailable) })
	want(s.Outside, nodePort, noAnswer)
	want(s.client(), nodePort, remotePod)
	want(s.Outside, webAddress, remotePod)

	s.patch(serviceObjects+"/web", `{"spec":{"internalTrafficPolicy":"Local"}}`)
	want(s.client(), webAddress, noAnswer)
	s.patch(serviceObjects+"/web", `{"spec":{"internalTrafficPolicy":"Cluster","externalTrafficPolicy":"Cluster"}}`)
	want(s.client(), webAddress, remotePod)
	want(s.Outside, nodePort, remotePod)
}

func TestClusterSourceRangesAreEnforcedAndEditedLive(t *testing.T) {
	t.Parallel()
	s, _ := newBalanced(t, admitting("172.20.9.128/25"))
	s.start()
	const address = balancerAddress + ":80"
	eventually(t, func() error { return denied(s.Outside, address) })
	if got := whoAnswers(s.Outside, webAddress); got != bothPods {
		t.Errorf("by the clusterIP, which is not guarded, %s answered, want %s", got, bothPods)
	}
	edit := func(ranges string) {
		s.patch(serviceObjects+"/web", `{"spec":{"loadBalancerSourceRanges":`+ranges+`}}`)
	}
	admitted := func() error {
		_, err := ask(s.Outside, address)
		return err
	}
	edit(`["172.20.9.0/24"]`)
	within(t, 2*time.Second, admitted)
	edit(`["203.0.113.0/24"]`)
	within(t, 2*time.Second, func() error { return denied(s.Outside, address) })
	edit(`[]`)
	within(t, 2*time.Second, admitted)
}
