//go:build cluster

package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	accounts     = "/api/v1/namespaces/default/serviceaccounts"
	clusterRoles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
	roleBindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
)

// useAccount makes the program one of a ServiceAccount that has no rights yet.
func (s *served) useAccount() {
	s.t.Helper()
	meta := metav1.ObjectMeta{Name: "kube-splice"}
	s.create(accounts, &corev1.ServiceAccount{ObjectMeta: meta})
	s.create(clusterRoles, &rbacv1.ClusterRole{ObjectMeta: meta})
	s.create(roleBindings, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: meta.Name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
	})
	s.kubeconfig = s.kubeconfigOf(accounts + "/" + meta.Name)
}

// kubeconfigOf writes a kubeconfig with a token of a ServiceAccount, and returns its path.
func (s *served) kubeconfigOf(account string) string {
	s.t.Helper()
	request := &authenticationv1.TokenRequest{}
	s.create(account+"/token", request)
	config, err := clientcmd.LoadFromFile(s.kubeconfig)
	check(s.t, err)
	for _, user := range config.AuthInfos {
		user.Token = request.Status.Token
	}
	path := filepath.Join(s.t.TempDir(), "kubeconfig")
	check(s.t, clientcmd.WriteToFile(*config, path))
	return path
}

// allow lets the ServiceAccount list and watch resources, such as "services", create
// Events, and nothing else.
func (s *served) allow(resources ...string) {
	s.t.Helper()
	rules := []string{`{"apiGroups":["events.k8s.io"],"resources":["events"],"verbs":["create"]}`}
	for _, r := range resources {
		name, group, _ := strings.Cut(r, ".")
		rules = append(rules, fmt.Sprintf(`{"apiGroups":[%q],"resources":[%q],"verbs":["list","watch"]}`, group, name))
	}
	s.patch(clusterRoles+"/kube-splice", `{"rules":[`+strings.Join(rules, ",")+`]}`)
}

func TestClusterRightsThatAreMissingAreNamedAndAwaited(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.serveAll("pod-a")
	s.create(serviceObjects, newService("web", "10.96.0.10", selecting))
	s.runPod("web", "web-1", podA)
	s.awaitReady("web", podA)
	s.useAccount()
	all := []string{"services", "endpointslices.discovery.k8s.io", "nodes"}
	s.allow(all...)
	p := s.start()
	wantAnswer(t, s.Outside, webAddress, "pod-a")
	if n := p.warnings(); n != 0 {
		t.Errorf("%d warnings, want none:\n%s", n, p.said.text())
	}
	p.finish(1)

	for i, missing := range all {
		s.allow(slices.Delete(slices.Clone(all), i, i+1)...)
		rules := s.ourRules()
		p := s.launch("")
		eventually(t, func() error { return wantForbidden(p, missing) })
		time.Sleep(2 * time.Second) // for what must not happen: another line, or ready
		if n := p.warnings(); n != 1 {
			t.Errorf("%d warnings, want one:\n%s", n, p.said.text())
		}
		check(t, wantSaid(p, "msg=ready", 0))
		if now := s.ourRules(); !slices.Equal(now, rules) {
			t.Errorf("without the right to read %s, rules were changed from\n%v\nto\n%v", missing, rules, now)
		}
		s.awaitHealth(503, false)
		s.allow(all...)
		p.waitReady()
		wantAnswer(t, s.Outside, webAddress, "pod-a")
		eventually(t, func() error { return wantSaid(p, readsAgain, 1) })
		p.finish(1)
	}
}

// wantForbidden tells whether one line says which right to a resource is missing.
func wantForbidden(p *program, resource string) error {
	for _, verb := range []string{"list", "watch"} {
		if wantSaid(p, "forbids reading; let a ClusterRole of this user list and watch the resource\" verb="+verb+" resource="+resource+" ", 1) == nil {
			return nil
		}
	}
	return fmt.Errorf("no line, or more than one, names verb and resource %s: %s", resource, p.said.text())
}
