package status_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/status"
)

func webCheck(port uint16, local int) status.HealthCheck {
	return status.HealthCheck{Namespace: "default", Service: "web", Family: service.IPv4, Port: port, LocalEndpoints: local}
}

func newNodePortHealth(t *testing.T, cfg status.NodePortHealthConfig) *status.NodePortHealth {
	t.Helper()
	n := status.NewNodePortHealth(cfg)
	t.Cleanup(n.Close)
	return n
}

// checkBody is kube-proxy's body, tabs and all.
func checkBody(name string, local int, healthy bool) string {
	return fmt.Sprintf("{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": %q\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}", name, local, healthy)
}

func wantCheck(t *testing.T, url string, code int, name string, local int, healthy bool) {
	t.Helper()
	got := get(t, url)
	wantAnswer(t, got, code, "application/json", checkBody(name, local, healthy))
	if weight := got.header.Get("X-Load-Balancing-Endpoint-Weight"); weight != fmt.Sprint(local) {
		t.Errorf("weight %q, want %d", weight, local)
	}
}

func TestHealthCheckTellsLocalEndpoints(t *testing.T) {
	var healthy atomic.Bool
	healthy.Store(true)
	n := newNodePortHealth(t, status.NodePortHealthConfig{Healthy: healthy.Load})
	const url = "http://127.0.0.1:32001"
	check(t, n.Sync([]status.HealthCheck{webCheck(32001, 2)}))
	wantCheck(t, url, 200, "web", 2, true)
	wantCheck(t, url+"/any/path?at=all", 200, "web", 2, true)

	check(t, n.Sync([]status.HealthCheck{webCheck(32001, 0)}))
	wantCheck(t, url, 503, "web", 0, true)

	check(t, n.Sync([]status.HealthCheck{webCheck(32001, 1)}))
	healthy.Store(false)
	wantCheck(t, url, 503, "web", 1, false)
	healthy.Store(true)
	wantCheck(t, url, 200, "web", 1, true)
}

func TestHealthCheckAnswersAnyMethod(t *testing.T) {
	n := newNodePortHealth(t, status.NodePortHealthConfig{})
	check(t, n.Sync([]status.HealthCheck{webCheck(32001, 1)}))
	resp, err := http.Post("http://127.0.0.1:32001/", "text/plain", strings.NewReader("hello"))
	check(t, err)
	defer http.DefaultClient.CloseIdleConnections()
	defer func() { _ = resp.Body.Close() }()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 || string(body) != checkBody("web", 1, true) {
		t.Errorf("POST: %d %s", resp.StatusCode, body)
	}
}

func TestHealthCheckThatStaysIsNotReopened(t *testing.T) {
	n := newNodePortHealth(t, status.NodePortHealthConfig{})
	check(t, n.Sync([]status.HealthCheck{webCheck(32001, 1)}))
	conn, err := net.Dial("tcp", "127.0.0.1:32001")
	check(t, err)
	defer func() { _ = conn.Close() }()
	for local := range 3 {
		check(t, n.Sync([]status.HealthCheck{webCheck(32001, local), {Namespace: "default", Service: "other", Family: service.IPv4, Port: uint16(32002 + local)}}))
		_, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		check(t, err)
		buf := make([]byte, 1000)
		size, err := conn.Read(buf)
		if err != nil || !strings.HasSuffix(string(buf[:size]), checkBody("web", local, true)) {
			t.Errorf("on the same connection: %s (%v), want %d endpoints", buf[:size], err, local)
		}
	}
}

func TestHealthChecksComeAndGo(t *testing.T) {
	n := newNodePortHealth(t, status.NodePortHealthConfig{})
	other := status.HealthCheck{Namespace: "default", Service: "other", Family: service.IPv4, Port: 32002, LocalEndpoints: 5}
	check(t, n.Sync([]status.HealthCheck{webCheck(32001, 1), other}))
	wantCheck(t, "http://127.0.0.1:32001", 200, "web", 1, true)
	wantCheck(t, "http://127.0.0.1:32002", 200, "other", 5, true)

	check(t, n.Sync([]status.HealthCheck{webCheck(32003, 1), other}))
	wantClosed(t, "127.0.0.1:32001")
	wantCheck(t, "http://127.0.0.1:32003", 200, "web", 1, true)

	other.Port = 32003 // taken over from the Service that leaves
	check(t, n.Sync([]status.HealthCheck{other}))
	wantCheck(t, "http://127.0.0.1:32003", 200, "other", 5, true)

	n.Close()
	wantClosed(t, "127.0.0.1:32003")
}

func TestHealthCheckOfAnotherNamespaceIsAnotherCheck(t *testing.T) {
	n := newNodePortHealth(t, status.NodePortHealthConfig{})
	other := webCheck(32002, 0)
	other.Namespace = "other"
	check(t, n.Sync([]status.HealthCheck{webCheck(32001, 1), other}))
	if one, two := get(t, "http://127.0.0.1:32001").code, get(t, "http://127.0.0.1:32002").code; one != 200 || two != 503 {
		t.Errorf("answered %d and %d, want 200 and 503", one, two)
	}
}

func TestHealthCheckOfEachFamilyHasItsOwnCount(t *testing.T) {
	n := newNodePortHealth(t, status.NodePortHealthConfig{})
	six := webCheck(32001, 3)
	six.Family = service.IPv6
	check(t, n.Sync([]status.HealthCheck{webCheck(32001, 1), six}))
	wantCheck(t, "http://127.0.0.1:32001", 200, "web", 1, true)
	wantCheck(t, "http://[::1]:32001", 200, "web", 3, true)
	check(t, n.Sync([]status.HealthCheck{six}))
	wantClosed(t, "127.0.0.1:32001")
	wantCheck(t, "http://[::1]:32001", 200, "web", 3, true)
}

func TestHealthChecksListenOnTheGivenAddressesOnly(t *testing.T) {
	four := addresses("127.0.0.2", "127.0.0.3")
	n := newNodePortHealth(t, status.NodePortHealthConfig{Addresses: func(f service.Family) ([]netip.Addr, error) {
		if f == service.IPv6 {
			return addresses("::"), nil
		}
		return four, nil
	}})
	six := webCheck(32001, 3)
	six.Family = service.IPv6
	checks := []status.HealthCheck{webCheck(32001, 1), six}
	check(t, n.Sync(checks))
	wantCheck(t, "http://127.0.0.2:32001", 200, "web", 1, true)
	wantCheck(t, "http://127.0.0.3:32001", 200, "web", 1, true)
	wantClosed(t, "127.0.0.1:32001")
	wantCheck(t, "http://[::1]:32001", 200, "web", 3, true)

	four = addresses("127.0.0.3", "127.0.0.4") // the node has others now
	check(t, n.Sync(checks))
	wantCheck(t, "http://127.0.0.3:32001", 200, "web", 1, true)
	wantCheck(t, "http://127.0.0.4:32001", 200, "web", 1, true)
	wantClosed(t, "127.0.0.2:32001")

	four = nil
	check(t, n.Sync(checks))
	wantClosed(t, "127.0.0.3:32001")
	wantCheck(t, "http://[::1]:32001", 200, "web", 3, true)
}

func addresses(list ...string) []netip.Addr {
	var all []netip.Addr
	for _, a := range list {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

func TestHealthCheckOnATakenPortIsToldOnceAndTriedAgain(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.3:32001")
	check(t, err)
	var failed []status.HealthCheck
	n := newNodePortHealth(t, status.NodePortHealthConfig{
		Addresses: func(service.Family) ([]netip.Addr, error) { return addresses("127.0.0.2", "127.0.0.3"), nil },
		Failed:    func(c status.HealthCheck, err error) { failed = append(failed, c) },
	})
	checks := []status.HealthCheck{webCheck(32001, 1), {Namespace: "default", Service: "other", Family: service.IPv4, Port: 32002, LocalEndpoints: 1}}
	for range 3 {
		err := n.Sync(checks)
		if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "default/web") || strings.Contains(err.Error(), "other") {
			t.Errorf("Sync: %v, want that default/web's address is in use", err)
		}
	}
	if len(failed) != 1 || failed[0] != checks[0] {
		t.Errorf("told of %v, want once of %v", failed, checks[0])
	}
	wantClosed(t, "127.0.0.2:32001") // all of its addresses or none
	wantCheck(t, "http://127.0.0.2:32002", 200, "other", 1, true)

	check(t, taken.Close())
	check(t, n.Sync(checks))
	wantCheck(t, "http://127.0.0.3:32001", 200, "web", 1, true)

	check(t, n.Sync(nil))
	taken, err = net.Listen("tcp", "127.0.0.3:32001")
	check(t, err)
	defer func() { check(t, taken.Close()) }()
	_ = n.Sync(checks)
	if len(failed) != 2 {
		t.Errorf("told %d times, want again when it fails anew", len(failed))
	}
}
