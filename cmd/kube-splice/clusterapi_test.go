//go:build cluster

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-splice/kube-splice/lab"
)

// Where the API has its objects.
const (
	nodeObjects    = "/api/v1/nodes"
	serviceObjects = "/api/v1/namespaces/default/services"
	podObjects     = "/api/v1/namespaces/default/pods"
	sliceObjects   = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
	asMergePatch   = "application/merge-patch+json"
	asJSON         = "application/json"
	requestTimeout = 20 * time.Second
)

// api is an administrator's client of the API server.
type api struct {
	tb     testing.TB
	http   *http.Client
	server string
	token  string
}

// newAPI returns a client that connects from a machine of the lab.
func newAPI(t testing.TB, kubeconfig string, from *lab.Namespace) *api {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	check(t, err)
	secure, err := rest.TLSConfigFor(config)
	check(t, err)
	transport := &http.Transport{DialContext: from.DialContext, TLSClientConfig: secure, MaxIdleConnsPerHost: 16}
	t.Cleanup(transport.CloseIdleConnections)
	return &api{t, &http.Client{Transport: transport, Timeout: requestTimeout}, config.Host, config.BearerToken}
}

// try sends a request and decodes the answer into result, unless that is nil.
func (a *api) try(method, path, contentType string, body []byte, result any) error {
	request, err := http.NewRequest(method, a.server+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+a.token)
	request.Header.Set("Content-Type", contentType)
	response, err := a.http.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	if err == nil && result != nil {
		err = json.Unmarshal(text, result)
	}
	return err
}

// create creates an object and returns into it what became of it.
func (a *api) create(path string, object any) {
	a.tb.Helper()
	check(a.tb, a.tryCreate(path, object))
}

func (a *api) tryCreate(path string, object any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return a.try(http.MethodPost, path, asJSON, body, object)
}

// patch merges a piece of JSON into an object.
func (a *api) patch(path, piece string) {
	a.tb.Helper()
	check(a.tb, a.try(http.MethodPatch, path, asMergePatch, []byte(piece), nil))
}

// delete deletes an object. Without a kubelet a Pod terminates until it is removed
// by force.
func (a *api) delete(path string) {
	a.tb.Helper()
	check(a.tb, a.try(http.MethodDelete, path, asJSON, nil, nil))
}

// removeByForce removes a Pod as a kubelet does when its containers have ended.
func (a *api) removeByForce(pod string) {
	a.tb.Helper()
	check(a.tb, a.try(http.MethodDelete, podObjects+"/"+pod, asJSON, []byte(`{"gracePeriodSeconds":0}`), nil))
}

// runPod creates a ready Pod of a Service on the node: its label app is the
// Service's name.
func (a *api) runPod(service, name, address string) {
	a.tb.Helper()
	a.runPodOn("node", service, name, address)
}

// runPodOn is runPod on any node.
func (a *api) runPodOn(node, service, name, address string) {
	a.tb.Helper()
	a.create(podObjects, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": service}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "web", Image: "none"}}},
	})
	a.patch(podObjects+"/"+name+"/status", fmt.Sprintf(`{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q}]}}`, address, address))
	a.setReady(name, true)
}

// setReady says what a kubelet says of a Pod's readiness probe.
func (a *api) setReady(pod string, ready bool) {
	a.tb.Helper()
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	a.patch(podObjects+"/"+pod+"/status", fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":%q}]}}`, status))
}

// selecting gives a Service the Pods that runPod makes for it.
func selecting(s *corev1.Service) {
	s.Spec.Selector = map[string]string{"app": s.Name}
	s.Spec.Ports[0].TargetPort.IntVal = 8080
}

// readyAddresses returns the addresses that the EndpointSlices of a Service have as
// ready, sorted.
func (a *api) readyAddresses(service string) ([]string, error) {
	var list discoveryv1.EndpointSliceList
	err := a.try(http.MethodGet, sliceObjects+"?labelSelector="+discoveryv1.LabelServiceName+"%3D"+service, asJSON, nil, &list)
	var all []string
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready != nil && *e.Conditions.Ready {
				all = append(all, e.Addresses...)
			}
		}
	}
	slices.Sort(all)
	return all, err
}

// awaitReady waits until the EndpointSlices of a Service have the addresses as ready
// and no others. The controller that writes them may need some seconds.
func (a *api) awaitReady(service string, addresses ...string) {
	a.tb.Helper()
	slices.Sort(addresses)
	eventually(a.tb, func() error {
		now, err := a.readyAddresses(service)
		if err == nil && !slices.Equal(now, addresses) {
			err = fmt.Errorf("ready endpoints are %s, want %s", strings.Join(now, " "), strings.Join(addresses, " "))
		}
		return err
	})
}
