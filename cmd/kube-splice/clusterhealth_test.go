//go:build cluster

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

// awaitHealth waits until /healthz has a status code and tells whether the node may
// be sent traffic.
func (s *served) awaitHealth(code int, eligible bool) {
	s.t.Helper()
	text := fmt.Sprintf(`"nodeEligible":%t`, eligible)
	within(s.t, 5*time.Second, func() error {
		got, body, err := get(s.Outside, "http://"+lab.NodeIP+":10256/healthz")
		if err == nil && (got != code || !strings.Contains(body, text)) {
			err = fmt.Errorf("/healthz answers %d %s, want %d and %s", got, body, code, text)
		}
		return err
	})
}

func TestClusterNodeThatGoesIsNotEligible(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.start()
	s.awaitHealth(200, true)
	node := nodeObjects + "/node"

	s.patch(node, `{"spec":{"taints":[{"key":"ToBeDeletedByClusterAutoscaler","effect":"NoSchedule"}]}}`)
	s.awaitHealth(503, false)
	s.patch(node, `{"spec":{"taints":[{"key":"example.com/other","effect":"NoSchedule"}]}}`)
	s.awaitHealth(200, true)

	// A finalizer holds the Node in its deletion.
	s.patch(node, `{"metadata":{"finalizers":["example.com/wait"]}}`)
	s.delete(node)
	s.awaitHealth(503, false)
	s.patch(node, `{"metadata":{"finalizers":null}}`)
	s.awaitHealth(503, false)
	s.addNode()
	s.awaitHealth(200, true)
	wantPage(t, s.Outside, "http://"+lab.NodeIP+":10256/livez", 200, `"healthy":true`)
}
