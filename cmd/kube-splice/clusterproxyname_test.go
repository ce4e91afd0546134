//go:build cluster

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestClusterServiceOfAnotherProxyIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.serveAll("pod-a")
	p := s.start()
	listeners := s.listening()
	s.create(serviceObjects, newService("web", "10.96.0.10", selecting, nodePort(30080)))
	s.runPod("web", "web-1", podA)
	s.awaitReady("web", podA)
	addresses := []string{webAddress, "172.20.1.2:30080"}
	s.wantReached(addresses, "pod-a")

	s.patch(serviceObjects+"/web", `{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":"another"}}}`)
	within(t, 2*time.Second, func() error {
		for _, address := range addresses {
			if err := unserved(s.Outside, address); err != nil {
				return err
			}
		}
		if strings.Contains(strings.Join(s.ourRules(), "\n"), "default/web") {
			return errors.New("rules of a Service of another proxy are still there")
		}
		if now := s.listening(); !slices.Equal(now, listeners) {
			return fmt.Errorf("listening on %v, before there was the Service on %v", now, listeners)
		}
		return nil
	})

	s.patch(serviceObjects+"/web", `{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":null}}}`)
	s.wantReached(addresses, "pod-a")
	if n := p.warnings(); n != 0 {
		t.Errorf("%d warnings, want none:\n%s", n, p.said.text())
	}
}
