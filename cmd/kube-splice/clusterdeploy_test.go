//go:build cluster

package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

const (
	asApplyPatch     = "application/apply-patch+yaml"
	asStrategicPatch = "application/strategic-merge-patch+json"
	systemSpace      = "/api/v1/namespaces/kube-system"
	deployedSet      = "/apis/apps/v1/namespaces/kube-system/daemonsets/kube-splice"
	deployedUser     = systemSpace + "/serviceaccounts/kube-splice"
	rulesReviews     = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
	newEvents        = "/apis/events.k8s.io/v1/namespaces/default/events"
)

// deployedPaths is where the API has the objects that are shipped, by kind.
var deployedPaths = map[string]string{
	"ServiceAccount":     deployedUser,
	"ClusterRole":        clusterRoles + "/kube-splice",
	"ClusterRoleBinding": roleBindings + "/kube-splice",
	"DaemonSet":          deployedSet,
	"ConfigMap":          systemSpace + "/configmaps/kube-proxy",
}

// tryApply applies a manifest as kubectl apply --server-side does, and unknown fields
// are refused.
func (a *api) tryApply(manifest []byte) error {
	var object metav1.TypeMeta
	if err := yaml.Unmarshal(manifest, &object); err != nil {
		return err
	}
	path, known := deployedPaths[object.Kind]
	if !known {
		return fmt.Errorf("say here where the API has a %s", object.Kind)
	}
	return a.try(http.MethodPatch, path+"?fieldManager=test&fieldValidation=Strict", asApplyPatch, manifest, nil)
}

// applyFolder applies all that a folder of deploy holds.
func (a *api) applyFolder(name string) {
	a.tb.Helper()
	files, err := filepath.Glob(filepath.Join(deployFolder, name, "*.yaml"))
	check(a.tb, err)
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		text, err := os.ReadFile(file)
		check(a.tb, err)
		if err := a.tryApply(text); err != nil {
			a.tb.Errorf("%s: %v", file, err)
		}
	}
}

func TestClusterShippedObjectsAreAccepted(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	text, err := os.ReadFile(filepath.Join(deployFolder, "base", "daemonset.yaml"))
	check(t, err)
	misspelt := strings.Replace(string(text), "hostNetwork", "hostNet", 1)
	if err := s.tryApply([]byte(misspelt)); err == nil || !strings.Contains(err.Error(), "hostNet:") {
		t.Errorf("a misspelt field: %v", err)
	}
	s.applyFolder("base")
	var set appsv1.DaemonSet
	check(t, s.try(http.MethodGet, deployedSet, asJSON, nil, &set))
	if got := set.Spec.UpdateStrategy.RollingUpdate; got == nil || got.MaxUnavailable.IntVal != 1 || got.MaxSurge.IntVal != 0 {
		t.Errorf("updates are rolled out with %+v", got)
	}
	wantSent(t, set.Spec.Template.Spec)
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "kube-splice-test"}, Spec: set.Spec.Template.Spec}
	s.create(systemSpace+"/pods", &pod)

	// The trial's is a patch, which kustomize merges as this does.
	text, err = os.ReadFile(filepath.Join(deployFolder, "trial", "daemonset.yaml"))
	check(t, err)
	text, err = yaml.ToJSON(text)
	check(t, err)
	check(t, s.try(http.MethodPatch, deployedSet+"?fieldValidation=Strict", asStrategicPatch, text, nil))
	check(t, s.try(http.MethodGet, deployedSet, asJSON, nil, &set))
	want := map[string]string{"kubernetes.io/os": "linux", "kube-splice.io/trial": "true"}
	if got := set.Spec.Template.Spec.NodeSelector; !reflect.DeepEqual(got, want) {
		t.Errorf("on trial it runs on nodes with %v, want %v", got, want)
	}
	s.applyFolder("standalone")
}

// wantSent demands that the API server holds the pod as it was shipped: all that was
// written is there, and only what was not is a default.
func wantSent(t *testing.T, got corev1.PodSpec) {
	t.Helper()
	sent, _ := deployed(t)
	for i := range sent.Volumes {
		if m := sent.Volumes[i].ConfigMap; m != nil {
			m.DefaultMode = got.Volumes[i].ConfigMap.DefaultMode
		}
	}
	for name, pair := range map[string][2]any{
		"hostNetwork": {sent.HostNetwork, got.HostNetwork},
		"tolerations": {sent.Tolerations, got.Tolerations},
		"priority":    {sent.PriorityClassName, got.PriorityClassName},
		"security":    {sent.Containers[0].SecurityContext, got.Containers[0].SecurityContext},
		"volumes":     {sent.Volumes, got.Volumes},
		"arguments":   {sent.Containers[0].Args, got.Containers[0].Args},
	} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Errorf("%s: shipped %+v, accepted as %+v", name, pair[0], pair[1])
		}
	}
}

// rights returns what the API server lets a client do in a namespace, as lines that
// name group, resource and verbs.
func (a *api) rights(namespace string) map[string]bool {
	a.tb.Helper()
	review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}
	a.create(rulesReviews, review)
	if review.Status.Incomplete {
		a.tb.Fatalf("the API server cannot list the rights: %s", review.Status.EvaluationError)
	}
	all := map[string]bool{}
	for _, r := range review.Status.ResourceRules {
		all[fmt.Sprintf("%q %q %q %q", r.APIGroups, r.Resources, r.ResourceNames, r.Verbs)] = true
	}
	return all
}

func TestClusterShippedRoleIsEnoughAndAllowsNothingElse(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.serveAll("pod-a", "pod-b")
	s.applyFolder("base")
	s.create(accounts, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "anybody"}})
	anybody := newAPI(t, s.kubeconfigOf(accounts+"/anybody"), s.Node)
	s.kubeconfig = s.kubeconfigOf(deployedUser)
	account := newAPI(t, s.kubeconfig, s.Node)
	for _, namespace := range []string{"default", "kube-system"} {
		more := account.rights(namespace)
		for right := range anybody.rights(namespace) {
			delete(more, right)
		}
		want := map[string]bool{
			`[""] ["services"] [] ["list" "watch"]`:                       true,
			`["discovery.k8s.io"] ["endpointslices"] [] ["list" "watch"]`: true,
			`[""] ["nodes"] [] ["list" "watch"]`:                          true,
			`["events.k8s.io"] ["events"] [] ["create"]`:                  true,
		}
		if !reflect.DeepEqual(more, want) {
			t.Errorf("in %s, more than anybody, it may\n%v\nwant\n%v", namespace, more, want)
		}
	}

	s.create(serviceObjects, newService("web", "10.96.0.10", selecting, nodePort(30080)))
	s.runPod("web", "web-1", podA)
	s.awaitReady("web", podA)
	p := s.start()
	s.wantReached([]string{webAddress, "172.20.1.2:30080"}, "pod-a")
	s.runPod("web", "web-2", podB)
	s.setReady("web-1", false)
	s.awaitReady("web", podB)
	soonOnly(t, s.Outside, webAddress, "pod-b")
	s.patch(nodeObjects+"/node", `{"spec":{"taints":[{"key":"ToBeDeletedByClusterAutoscaler","effect":"NoSchedule"}]}}`)
	s.awaitHealth(503, false)
	account.wantForbiddenButEvents()
	if n := p.warnings(); n != 0 {
		t.Errorf("%d warnings, want none:\n%s", n, p.said.text())
	}
}

// wantForbiddenButEvents tries to write, and to read what is none of the program's
// business. Only a new Event is taken.
func (a *api) wantForbiddenButEvents() {
	a.tb.Helper()
	var list discoveryv1.EndpointSliceList
	check(a.tb, a.try(http.MethodGet, sliceObjects, asJSON, nil, &list))
	slice := sliceObjects + "/" + list.Items[0].Name
	event := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "started", Namespace: "default"}, EventTime: metav1.NowMicro(),
		ReportingController: "kube-splice", ReportingInstance: "node", Action: "Start", Reason: "Started", Type: corev1.EventTypeNormal,
		Regarding: corev1.ObjectReference{Kind: "Node", Name: "node"},
	}
	a.create(newEvents, event)
	const empty = `{"metadata":{"labels":{"a":"b"}}}`
	for _, try := range []struct{ method, path, body string }{
		{http.MethodPost, serviceObjects, asText(a.tb, newService("mine", ""))},
		{http.MethodPatch, serviceObjects + "/web", empty},
		{http.MethodPatch, serviceObjects + "/web/status", empty},
		{http.MethodDelete, serviceObjects + "/web", ""},
		{http.MethodDelete, serviceObjects, ""},
		{http.MethodGet, serviceObjects + "/web", ""},
		{http.MethodPost, sliceObjects, asText(a.tb, newSlice("mine", []string{podA}))},
		{http.MethodPatch, slice, empty},
		{http.MethodDelete, slice, ""},
		{http.MethodPatch, nodeObjects + "/node", empty},
		{http.MethodPatch, nodeObjects + "/node/status", empty},
		{http.MethodDelete, nodeObjects + "/node", ""},
		{http.MethodGet, podObjects, ""},
		{http.MethodDelete, podObjects + "/web-1", ""},
		{http.MethodGet, systemSpace + "/secrets", ""},
		{http.MethodGet, systemSpace + "/configmaps", ""},
		{http.MethodPatch, deployedSet, empty},
		{http.MethodPatch, clusterRoles + "/kube-splice", empty},
		{http.MethodPost, deployedUser + "/token", `{}`},
		{http.MethodPatch, newEvents + "/started", empty},
		{http.MethodDelete, newEvents + "/started", ""},
		{http.MethodGet, newEvents, ""},
		{http.MethodPost, "/api/v1/namespaces/default/events", `{"metadata":{"name":"old"},"involvedObject":{"namespace":"default"}}`},
	} {
		contentType := asJSON
		if try.method == http.MethodPatch {
			contentType = asMergePatch
		}
		err := a.try(try.method, try.path, contentType, []byte(strings.TrimSuffix(try.body, "---\n")), nil)
		if err == nil || !strings.Contains(err.Error(), "403 Forbidden") {
			a.tb.Errorf("%s %s is not forbidden: %v", try.method, try.path, err)
		}
	}
}
