package status_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/status"
)

// backend answers every line with the same, at an address that is no loopback one,
// which the proxy would not dial.
func backend(t testing.TB) (address string) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	check(t, err)
	addr, err := netlink.ParseAddr("10.88.0.11/32")
	check(t, err)
	_ = netlink.AddrAdd(lo, addr) // another test may have been here
	ln, err := net.Listen("tcp", "10.88.0.11:0")
	check(t, err)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer func() { _ = conn.Close() }()
				_, _ = io.Copy(conn, conn)
			})
		}
	})
	t.Cleanup(func() { _ = ln.Close(); conns.Wait() })
	return ln.Addr().String()
}

// newProxy returns a proxy that serves clients directly and tells m of connections.
func newProxy(t testing.TB, m *status.Metrics, ended chan<- proxy.Record) *proxy.Proxy {
	t.Helper()
	p := proxy.New(proxy.Config{Direct: true, Record: func(r proxy.Record) { m.Record(r); ended <- r }})
	m.Watch(p, nil)
	t.Cleanup(func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		p.Shutdown(now)
	})
	return p
}

func TestScrapeShowsTheProxysCountersByServicePort(t *testing.T) {
	m, ended := newMetrics(t, status.MetricsConfig{}), make(chan proxy.Record, 10)
	p := newProxy(t, m, ended)
	web, idle := newPort("web", backend(t)), newPort("idle")
	web.Policy.Affinity = time.Hour
	snap := snapshot(idle, web)
	m.Sync(snap)
	opened := p.Open(snap)
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", opened.Bindings[1].Listener.Port()))
	check(t, err)
	_, err = io.WriteString(conn, "hello\n")
	check(t, err)
	_, err = io.ReadFull(conn, make([]byte, 6))
	check(t, err)

	const of = `ip_family="IPv4",namespace="default",port="http",protocol="tcp",service="web"}`
	wantSeries(t, m, "kubesplice_connections_active", 1)
	wantSeries(t, m, "kubesplice_service_connections_active{"+of, 1)
	_ = conn.Close()
	<-ended
	for line, want := range map[string]float64{
		"kubesplice_connections_total":                                              1,
		"kubesplice_connections_active":                                             0,
		`kubesplice_bytes_total{direction="up"}`:                                    6,
		`kubesplice_bytes_total{direction="down"}`:                                  6,
		`kubesplice_connections_refused_total{close="dial-failed"}`:                 0,
		`kubesplice_dial_failures_total`:                                            0,
		`kubesplice_dial_retries_total`:                                             0,
		`kubesplice_client_addresses_hidden_total`:                                  0,
		`kubesplice_affinity_evictions_total`:                                       0,
		`kubesplice_listeners_failing`:                                              0,
		"kubesplice_service_connections_total{" + of:                                1,
		"kubesplice_service_connections_active{" + of:                               0,
		`kubesplice_service_bytes_total{direction="up",` + of:                       6,
		`kubesplice_service_bytes_total{direction="down",` + of:                     6,
		"kubesplice_service_dial_failures_total{" + of:                              0,
		"kubesplice_service_endpoints{" + of:                                        1,
		"kubesplice_service_affinity_records{" + of:                                 1,
		`kubesplice_service_connections_ended_total{close="client-closed",` + of:    1,
		`kubesplice_service_endpoints{` + strings.Replace(of, `"web"`, `"idle"`, 1): 0,
	} {
		wantSeries(t, m, line, want)
	}
	if lines := strings.Join(seriesOf(t, m, "idle"), "\n"); strings.Contains(lines, "affinity") {
		t.Errorf("a Service without affinity has %s", lines)
	}

	m.Sync(snapshot(idle))
	p.Open(snapshot(idle))
	p.Prune()
	if lines := seriesOf(t, m, "web"); len(lines) > 0 {
		t.Errorf("the Service is gone, but not %s", strings.Join(lines, "\n"))
	}
	wantSeries(t, m, "kubesplice_connections_total", 1) // what has been stays in the totals
}

func TestScrapeShowsFailedDialsAndRefusals(t *testing.T) {
	m, ended := newMetrics(t, status.MetricsConfig{}), make(chan proxy.Record, 10)
	p := newProxy(t, m, ended)
	web := newPort("web", "10.88.0.11:1", "10.88.0.11:2") // nobody listens there
	backend(t)                                            // makes the address
	m.Sync(snapshot(web))
	opened := p.Open(snapshot(web))
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", opened.Bindings[0].Listener.Port()))
	if err == nil { // else the reset came before connect returned
		_ = conn.Close()
	}
	<-ended
	for line, want := range map[string]float64{
		`kubesplice_connections_refused_total{close="dial-failed"}`:                                                             1,
		`kubesplice_connections_refused_total{close="no-endpoints"}`:                                                            0,
		`kubesplice_connections_refused_total{close="refused-direct"}`:                                                          0,
		`kubesplice_connections_refused_total{close="denied"}`:                                                                  0,
		`kubesplice_dial_failures_total`:                                                                                        2,
		`kubesplice_dial_retries_total`:                                                                                         1,
		`kubesplice_service_dial_failures_total{ip_family="IPv4",namespace="default",port="http",protocol="tcp",service="web"}`: 2,
	} {
		wantSeries(t, m, line, want)
	}
}

func TestScrapeShowsRecordsMissingInTheConnectionLog(t *testing.T) {
	log, _ := newLog()
	broken, sink := io.Pipe()
	_ = broken.Close()
	connections := proxy.NewConnectionLog(sink, true, log)
	connections.Record(record(newPort("web").Name, proxy.ClientClosed))
	connections.Close(context.Background()) // after which the record has been refused
	m := newMetrics(t, status.MetricsConfig{})
	m.Watch(proxy.New(proxy.Config{}), connections)
	wantSeries(t, m, "kubesplice_connection_log_dropped_total", 1)
}

func TestServicesOfOddNamesDoNotSpoilTheScrape(t *testing.T) {
	m, ended := newMetrics(t, status.MetricsConfig{}), make(chan proxy.Record, 10)
	p := newProxy(t, m, ended)
	odd, unnamed := newPort("web\xff\"\n"), newPort("web")
	unnamed.Name.Port = ""
	p.Open(snapshot(unnamed, odd))
	wantSeries(t, m, `kubesplice_service_endpoints{ip_family="IPv4",namespace="default",port="",protocol="tcp",service="web"}`, 0)
	wantSeries(t, m, `kubesplice_service_endpoints{ip_family="IPv4",namespace="default",port="http",protocol="tcp",service="web`+"\uFFFD"+`\"\n"}`, 0)
}

// What a scrape costs on a large node. Each Service port has six series of counters.
func BenchmarkScrape(b *testing.B) {
	for _, services := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("%d services", services), func(b *testing.B) {
			m := newMetrics(b, status.MetricsConfig{})
			p := newProxy(b, m, make(chan proxy.Record))
			ports := make([]*service.Port, services)
			for i := range ports {
				ports[i] = newPort(fmt.Sprintf("web-%05d", i))
			}
			p.Open(snapshot(ports...))
			url := serve(b, m)
			for b.Loop() {
				get(b, url+"/metrics")
			}
			b.ReportAllocs()
		})
	}
}

// What a connection pays for its events.
func BenchmarkRecord(b *testing.B) {
	m := newMetrics(b, status.MetricsConfig{})
	ports := make([]*service.Port, 10000)
	for i := range ports {
		ports[i] = newPort(fmt.Sprintf("web-%05d", i))
	}
	m.Sync(snapshot(ports...))
	r := record(ports[1234].Name, proxy.ClientClosed)
	for b.Loop() {
		m.Record(r)
	}
	b.ReportAllocs()
}

// What a Snapshot costs in which one Service of many changed.
func BenchmarkSync(b *testing.B) {
	m := newMetrics(b, status.MetricsConfig{})
	ports := make([]*service.Port, 10000)
	for i := range ports {
		ports[i] = newPort(fmt.Sprintf("web-%05d", i))
	}
	one, other := snapshot(ports...), snapshot(append([]*service.Port{newPort("api")}, ports[1:]...)...)
	for b.Loop() {
		m.Sync(one)
		m.Sync(other)
	}
}
