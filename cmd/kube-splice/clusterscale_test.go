//go:build cluster

package main

import (
	"errors"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"
)

const (
	createdServices = 2000
	creators        = 8 // clients that create Services at the same time
	// longestCatchUp is for a slow machine under the race detector; the time itself
	// is logged.
	longestCatchUp = 30 * time.Second
)

// manyApp is the label of the pods of the i-th Service: every hundredth has some, and
// the last one has its own.
func manyApp(i int) string {
	if i%100 == 0 {
		return "many"
	}
	return fmt.Sprintf("web-%04d", i)
}

// createMany creates many Services, by several clients at the same time.
func (s *served) createMany() {
	s.t.Helper()
	var creating sync.WaitGroup
	errs := make([]error, creators)
	for i := range creators {
		creating.Go(func() {
			for j := i; j < createdServices && errs[i] == nil; j += creators {
				web := newService(fmt.Sprintf("web-%04d", j), manyAddress(j), selecting)
				web.Spec.Selector["app"] = manyApp(j)
				errs[i] = s.tryCreate(serviceObjects, web)
			}
		})
	}
	creating.Wait()
	check(s.t, errors.Join(errs...))
}

// ruled tells whether rules lead to a port of its own for each of many Services.
func (s *served) ruled() error {
	ports := map[string]string{}
	for _, line := range s.ourRules() {
		port := redirectedTo.FindStringSubmatch(line)
		name := ofManyServices.FindStringSubmatch(line)
		if port == nil || name == nil {
			continue
		}
		if other, taken := ports[port[1]]; taken && other != name[1] {
			return fmt.Errorf("rules of %s and %s lead to the same port %s", other, name[1], port[1])
		}
		ports[port[1]] = name[1]
	}
	if len(ports) != createdServices {
		return fmt.Errorf("rules lead to listeners of %d Services, want %d", len(ports), createdServices)
	}
	return nil
}

var ofManyServices = regexp.MustCompile(`"default/(web-\d{4}):http"`)

func TestClusterTwoThousandServicesAreCreatedWhileTheProxyRuns(t *testing.T) {
	s := newServed(t)
	s.serveAll("pod-a", "pod-b", "pod-c")
	p := s.start()
	last := createdServices - 1
	s.runPod("many", "many-1", podC)
	s.runPod(manyApp(last), "last-1", podA)
	s.runPod(manyApp(last), "last-2", podB)

	began := time.Now()
	s.createMany()
	created := time.Since(began)
	within(t, longestCatchUp, s.ruled)
	t.Logf("%d Services created in %v, rules for all %v after the first was asked for; resident %d MiB", createdServices,
		created.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), p.resident()>>20)

	address, service := manyAddress(last)+":80", fmt.Sprintf("web-%04d", last)
	s.awaitReady(service, podA, podB)
	s.wantReached([]string{address}, "pod-a", "pod-b")
	for i := 0; i < createdServices; i += 100 {
		s.awaitReady(fmt.Sprintf("web-%04d", i), podC)
		soon(t, s.Outside, manyAddress(i)+":80", "pod-c")
	}
	began = time.Now()
	s.setReady("last-1", false)
	s.awaitReady(service, podB)
	soonOnly(t, s.Outside, address, "pod-b")
	t.Logf("a pod that was no longer ready had no connection after %v", time.Since(began).Round(time.Millisecond))
	if n := p.warnings(); n != 0 {
		t.Errorf("%d warnings, want none:\n%s", n, p.said.text())
	}
}
