package main

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// probe asks a healthCheckNodePort from outside, as a load balancer does.
func (c *cluster) probe(port int) (status int, body string, err error) {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DialContext: c.Outside.DialContext, DisableKeepAlives: true}}
	answer, err := client.Get(fmt.Sprintf("http://%s:%d/", lab.NodeIP, port))
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), err
}

func TestLoadBalancersAreToldWhereLocalEndpointsAre(t *testing.T) {
	t.Parallel()
	c := newTwoNodes(t)
	p := policyCase{internal: inCluster, external: exLocal, endpoints: "both"}
	objects := p.objects(1, byIPv4)
	objects[0].(*corev1.Service).Spec.HealthCheckNodePort = 32000
	c.apply("policy", objects...)
	c.start("--cluster-cidr", "10.244.0.0/16")
	within(t, patience, func() error { return c.wantProbe(32000, http.StatusOK) })
	ways := byIPv4.ways(1)
	if got := whoAnswers(c.Outside, ways["nodePort"]); got != localPod {
		t.Errorf("outside by the nodePort: answered by %s, want %s", got, localPod)
	}

	slice := objects[1].(*discoveryv1.EndpointSlice)
	slice.Endpoints = slice.Endpoints[1:] // the local one leaves
	c.apply("policy", objects...)
	within(t, time.Second, func() error { return c.wantProbe(32000, http.StatusServiceUnavailable) })
	for _, way := range []string{"nodePort", "load balancer", "externalIP"} {
		wantRefused(t, c.Outside, ways[way])
		wantAnswer(t, c.client(), ways[way], remotePod)
	}
	wantAnswer(t, c.client(), ways["clusterIP"], remotePod)
	wantAnswer(t, c.Outside, ways["clusterIP"], remotePod)
}

func (c *cluster) wantProbe(port, status int) error {
	got, body, err := c.probe(port)
	if err == nil && got != status {
		err = fmt.Errorf("the probe is answered with %d: %s, want %d", got, body, status)
	}
	return err
}

// A connection made before outlives the edit; new ones follow the new policy.
func TestTrafficPolicyIsEditedOnALiveService(t *testing.T) {
	t.Parallel()
	c := newTwoNodes(t)
	edit := func(internal corev1.ServiceInternalTrafficPolicy, external corev1.ServiceExternalTrafficPolicy) {
		c.apply("policy", policyCase{internal: internal, external: external, endpoints: "remote"}.objects(1, byIPv4)...)
	}
	edit(inCluster, exCluster)
	c.start("--cluster-cidr", "10.244.0.0/16")
	ways := byIPv4.ways(1)
	before := hold(t, c.Outside, ways["nodePort"])
	wantHeld := func(h *held) {
		t.Helper()
		if who, err := h.ask(); who != remotePod {
			t.Errorf("the open connection is answered by %q (%v), want %s", who, err, remotePod)
		}
	}
	wantHeld(before)
	edit(inLocal, exLocal)
	within(t, time.Second, func() error { return refused(c.Outside, ways["nodePort"]) })
	within(t, time.Second, func() error { return refused(c.client(), ways["clusterIP"]) })
	wantAnswer(t, c.client(), ways["nodePort"], remotePod)
	wantHeld(before)
	edit(inCluster, exCluster)
	soon(t, c.Outside, ways["nodePort"], remotePod)
	soon(t, c.client(), ways["clusterIP"], remotePod)
	wantHeld(before)
}

// The last local pods answer clients outside while they drain, whatever is ready
// elsewhere.
func TestDrainingLocalEndpointsServeWhenNoLocalOneIsReady(t *testing.T) {
	t.Parallel()
	c := newTwoNodes(t)
	objects := policyCase{internal: inLocal, external: exLocal, endpoints: "both"}.objects(1, byIPv4)
	drain := &objects[1].(*discoveryv1.EndpointSlice).Endpoints[0].Conditions
	drain.Ready, drain.Serving, drain.Terminating = new(false), new(true), new(true)
	c.apply("policy", objects...)
	c.start("--cluster-cidr", "10.244.0.0/16")
	ways := byIPv4.ways(1)
	for _, cell := range []struct {
		from *lab.Namespace
		way  string
		want string
	}{
		{c.Outside, "nodePort", localPod},
		{c.Outside, "clusterIP", localPod},
		{c.client(), "nodePort", remotePod}, // the ready one
		{c.client(), "clusterIP", localPod},
	} {
		if got := whoAnswers(cell.from, ways[cell.way]); got != cell.want {
			t.Errorf("from %s by the %s: answered by %s, want %s", cell.from.Name, cell.way, got, cell.want)
		}
	}
}

// newNode is this node's Node object, in a zone.
func newNode(zone string) *corev1.Node {
	return &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{corev1.LabelTopologyZone: zone}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: lab.NodeIP}}},
	}
}

func TestTopologyHintsKeepTrafficInTheZone(t *testing.T) {
	t.Parallel()
	c := newTwoNodes(t)
	slice := newSlice("web", []string{byIPv4.pods[localPod], byIPv4.pods[remotePod]}, onNodes("node", "node2"))
	hint := func(zones ...string) {
		for i, zone := range zones {
			slice.Endpoints[i].Hints = nil
			if zone != "" {
				slice.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
			}
		}
		c.apply("slice", slice)
	}
	wantAll := func(want string) {
		t.Helper()
		within(t, 5*time.Second, func() error {
			if got := whoAnswers(c.client(), webAddress); got != want {
				return fmt.Errorf("answered by %s, want %s", got, want)
			}
			return nil
		})
	}
	hint("east", "west")
	c.apply("node", newNode("east"))
	c.apply("web", newService("web", "10.96.0.10"))
	c.start()
	wantAll(localPod)
	c.apply("node", newNode("west")) // as after a mistake in its labels is mended
	wantAll(remotePod)
	c.apply("node", newNode("south")) // nothing is meant for it
	wantAll(bothPods)
	c.apply("node", newNode("west"))
	wantAll(remotePod)
	hint("", "west") // hints of a part of the endpoints are none
	wantAll(bothPods)
}
