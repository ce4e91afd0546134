package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// get asks an HTTP server and returns its status code and body.
func get(from *lab.Namespace, url string) (int, string, error) {
	client := http.Client{Transport: &http.Transport{DialContext: from.DialContext, DisableKeepAlives: true}, Timeout: 5 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// wantPage demands a status code and a text.
func wantPage(t testing.TB, from *lab.Namespace, url string, code int, text string) {
	t.Helper()
	got, body, err := get(from, url)
	if err != nil || got != code || !strings.Contains(body, text) {
		t.Errorf("%s: %d (%v) %s, want %d and %q", url, got, err, body, code, text)
	}
}

// awaitSeries waits until /metrics has a line that begins so.
func awaitSeries(t testing.TB, c *cluster, series string) {
	t.Helper()
	eventually(t, func() error {
		_, body, err := get(c.Node, "http://127.0.0.1:10249/metrics")
		if err == nil && !strings.Contains(body, "\n"+series) {
			err = fmt.Errorf("no series %q", series)
		}
		return err
	})
}

func TestHealthModeAndMetricsAreServedWhereKubeProxyServesThem(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	p := c.start()
	wantAnswer(t, c.Outside, "10.96.0.10:80", "pod-a")
	p.records(1)
	wantPage(t, c.Outside, "http://172.20.1.2:10256/healthz", 200, `"nodeEligible":true`)
	wantPage(t, c.Outside, "http://172.20.1.2:10256/livez", 200, `"lastUpdated":`)
	wantPage(t, c.Node, "http://127.0.0.1:10249/proxyMode", 200, "userspace")
	for _, series := range []string{
		`kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"}`,
		`kubesplice_`, `service="web"`, `process_open_fds`,
	} {
		wantPage(t, c.Node, "http://127.0.0.1:10249/metrics", 200, series)
	}
	if _, _, err := get(c.Outside, "http://172.20.1.2:10249/metrics"); err == nil {
		t.Error("metrics are served to the outside")
	}
	counted := func(services, endpoints int) {
		t.Helper()
		for name, n := range map[string]int{"service": services, "endpoint": endpoints} {
			awaitSeries(t, c, fmt.Sprintf("kubeproxy_sync_proxy_rules_%s_changes_total %d\n", name, n))
		}
		awaitSeries(t, c, "kubeproxy_sync_proxy_rules_service_changes_pending 0\n")
	}
	counted(1, 1)
	c.apply("web", newService("web", "10.96.0.10"), newSlice("web", []string{podB}))
	counted(1, 2)
	c.apply("web", newService("web", "10.96.0.11"), newSlice("web", []string{podB}))
	counted(2, 2)
	for _, kind := range []string{"full", "partial"} { // at the start, and for the change
		awaitSeries(t, c, "kubeproxy_sync_"+kind+`_proxy_rules_duration_seconds_count{ip_family="IPv4"} `)
	}
	check(t, p.cmd.Process.Signal(syscall.SIGUSR1))
	eventually(t, func() error { return wantSaid(p, "counter kubesplice.service_connections_ended_total", 1) })
	c.remove("web")
	eventually(t, func() error {
		_, body, err := get(c.Node, "http://127.0.0.1:10249/metrics")
		if err == nil && strings.Contains(body, `service="web"`) {
			err = fmt.Errorf("series of a Service that is gone are still there")
		}
		return err
	})
}

func TestHealthCheckNodePortTellsOfLocalEndpoints(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	service := newService("web", "10.96.0.10", nodePort(30080), func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.HealthCheckNodePort = 32000
	})
	on := func(node string) func(*discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].NodeName = &node }
	}
	c.apply("web", service, newSlice("web", []string{podA}, on("node")))
	c.start()
	const url = "http://172.20.1.2:32000/"
	wantPage(t, c.Outside, url, 200, `"localEndpoints": 1`)
	c.apply("web", service, newSlice("web", []string{podA}, on("node2")))
	eventually(t, func() error {
		code, body, err := get(c.Outside, url)
		if err == nil && (code != 503 || !strings.Contains(body, `"localEndpoints": 0`)) {
			err = fmt.Errorf("%d %s, want 503 and no local endpoint", code, body)
		}
		return err
	})
	c.remove("web")
	eventually(t, func() error {
		if _, _, err := get(c.Outside, url); err == nil {
			return fmt.Errorf("the check of a Service that is gone still answers")
		}
		return nil
	})
}

func TestHealthChecksAnswerOnlyWhereNodePortsDo(t *testing.T) {
	t.Parallel()
	const primary, second = lab.NodeIP, "172.20.1.5"
	for flag, answers := range map[string]map[string]bool{
		"":             {primary: true, second: true},
		"primary":      {primary: true, second: false},
		second + "/32": {primary: false, second: true},
	} {
		c := newCluster(t)
		c.apply("web", newService("web", "10.96.0.10", nodePort(30080), func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			s.Spec.HealthCheckNodePort = 32000
		}))
		p := c.start("--nodeport-addresses", flag)
		for address, want := range answers {
			if _, _, err := get(c.Outside, "http://"+address+":32000/"); (err == nil) != want {
				t.Errorf("--nodeport-addresses %q: %s answers with %v, want an answer: %t", flag, address, err, want)
			}
		}
		p.kill(syscall.SIGTERM)
	}
}

func TestStatusAddressThatIsTakenIsFatalOnlyIfAsked(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	ln, err := c.Node.Listen("tcp", "0.0.0.0:10256")
	check(t, err)
	defer func() { _ = ln.Close() }()
	p := c.launch("", "--bind-address-hard-fail")
	if code := p.waitExit(); code != exitError || !strings.Contains(p.said.text(), "--healthz-bind-address") {
		t.Errorf("exit status %d, said: %s", code, p.said.text())
	}
	p = c.start()
	wantAnswer(t, c.Outside, "10.96.0.10:80", "pod-a")
	if n := strings.Count(p.said.text(), "--healthz-bind-address"); n != 1 {
		t.Errorf("the taken address is said %d times: %s", n, p.said.text())
	}
	_ = ln.Close()
	eventually(t, func() error { _, _, err := get(c.Outside, "http://172.20.1.2:10256/livez"); return err })
}
