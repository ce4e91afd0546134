package status_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/status"
)

func TestStatsdGetsEveryEventAndNoService(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	check(t, err)
	defer func() { check(t, server.Close()) }()
	m := newMetrics(t, status.MetricsConfig{Statsd: server.LocalAddr().String()})
	web := newPort("web")
	m.Sync(snapshot(web))
	m.Record(record(web.Name, proxy.ClientClosed))
	m.Synced(service.IPv6, true, 1500*time.Millisecond)
	m.ServiceChanges(3, 2)
	m.Close() // sends what is left
	m.Error("late")
	m.Close()

	want := map[string]bool{
		"kubesplice.service_connections_ended_total.client-closed:1.000000|c": true,
		"kubesplice.dial_duration_seconds.reached:0.002000|ms":                true,
		"kubeproxy.sync_proxy_rules_duration_seconds.IPv6:1.500000|ms":        true,
		"kubeproxy.sync_proxy_rules_service_changes_total:3.000000|c":         true,
		"kubeproxy.sync_proxy_rules_service_changes_pending:2.000000|g":       true,
	}
	var got strings.Builder
	check(t, server.SetReadDeadline(time.Now().Add(10*time.Second)))
	for buf := make([]byte, 2000); len(want) > 0; {
		n, _, err := server.ReadFrom(buf)
		if err != nil {
			t.Fatalf("%v: never got %v, only\n%s", err, want, &got)
		}
		for line := range strings.Lines(string(buf[:n])) {
			got.WriteString(line)
			delete(want, strings.TrimSpace(line))
		}
	}
	if strings.Contains(got.String(), "web") || strings.Contains(got.String(), "late") {
		t.Errorf("sent a Service's name, or what came after the end:\n%s", &got)
	}
}

func TestStatsdServerThatIsAwayIsSaidAndCostsNothing(t *testing.T) {
	away, err := net.ListenPacket("udp", "127.0.0.1:0")
	check(t, err)
	check(t, away.Close())
	log, text := newLog()
	m := newMetrics(t, status.MetricsConfig{Statsd: away.LocalAddr().String(), Log: log})
	said := false
	for deadline := time.After(20 * time.Second); !said; {
		m.Error("source") // the kernel tells of one datagram when the next is sent
		select {
		case <-text.wrote:
			said = true
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatal("nothing is said")
		}
	}
	if !strings.Contains(text.String(), "statsd") || !strings.Contains(text.String(), "refused") {
		t.Errorf("said %s, want that statsd refuses", text)
	}
	if flat(scrape(t, m))[`kubesplice_errors_total{part="source"}`] == 0 {
		t.Error("the events are lost to Prometheus too")
	}
}
