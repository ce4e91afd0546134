package status_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/status"
)

func TestScrapeShowsFlowsAndDatagrams(t *testing.T) {
	m, ended := newMetrics(t, status.MetricsConfig{}), make(chan proxy.Record, 10)
	p := newProxy(t, m, ended)
	backend(t) // makes the address
	server, err := net.ListenPacket("udp", "10.88.0.11:0")
	check(t, err)
	defer func() { _ = server.Close() }()
	dns, empty := newPort("dns", server.LocalAddr().String()), newPort("empty", "127.0.0.1:53") // which is never asked
	dns.Name.Protocol, empty.Name.Protocol = service.UDP, service.UDP
	dns.Policy.IdleTimeout = 200 * time.Millisecond
	snap := snapshot(dns, empty)
	m.Sync(snap)
	opened := p.Open(snap)
	ask := func(binding int, text string) net.Conn {
		t.Helper()
		conn, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", opened.Bindings[binding].Listener.Port()))
		check(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = conn.Write([]byte(text))
		check(t, err)
		return conn
	}
	ask(1, "refused")
	<-ended
	conn := ask(0, "hello")
	buf := make([]byte, 100)
	n, from, err := server.ReadFrom(buf)
	check(t, err)
	wantSeries(t, m, "kubesplice_flows_active", 1)
	for range 2 {
		_, err = server.WriteTo(buf[:n], from)
		check(t, err)
		_, err = conn.Read(buf)
		check(t, err)
	}
	<-ended

	const of = `ip_family="IPv4",namespace="default",port="http",protocol="udp",service="dns"}`
	for line, want := range map[string]float64{
		"kubesplice_flows_total":                                        2,
		"kubesplice_flows_active":                                       0,
		"kubesplice_flows_evicted_total":                                0,
		`kubesplice_datagrams_total{direction="up"}`:                    1,
		`kubesplice_datagrams_total{direction="down"}`:                  2,
		`kubesplice_datagrams_dropped_total{reason="unrouted"}`:         1,
		`kubesplice_datagrams_dropped_total{reason="no-socket"}`:        0,
		`kubesplice_datagrams_dropped_total{reason="full"}`:             0,
		`kubesplice_datagrams_dropped_total{reason="denied"}`:           0,
		`kubesplice_datagrams_dropped_total{reason="unsendable"}`:       0,
		"kubesplice_datagrams_resent_total":                             0,
		"kubesplice_datagram_receive_failures_total":                    0,
		"kubesplice_connections_total":                                  0,
		`kubesplice_connections_refused_total{close="no-endpoints"}`:    1,
		`kubesplice_connections_refused_total{close="refused"}`:         0,
		`kubesplice_bytes_total{direction="up"}`:                        5,
		`kubesplice_bytes_total{direction="down"}`:                      10,
		"kubesplice_service_connections_total{" + of:                    1,
		"kubesplice_service_connections_active{" + of:                   0,
		`kubesplice_service_bytes_total{direction="up",` + of:           5,
		`kubesplice_service_datagrams_total{direction="up",` + of:       1,
		`kubesplice_service_datagrams_total{direction="down",` + of:     2,
		`kubesplice_service_connections_ended_total{close="idle",` + of: 1,
		"kubesplice_service_endpoints{" + of:                            1,
	} {
		wantSeries(t, m, line, want)
	}
	if lines := strings.Join(seriesOf(t, m, "dns"), "\n"); strings.Contains(lines, "affinity") {
		t.Errorf("a Service without affinity has %s", lines)
	}
}
