package status_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/status"
)

func record(name service.Name, how proxy.Close) proxy.Record {
	return proxy.Record{
		Name: name, Client: netip.MustParseAddrPort("192.0.2.77:4711"), Backend: netip.MustParseAddrPort("198.51.100.5:80"),
		Attempts: 1, Dial: 2 * time.Millisecond, Close: how,
	}
}

const endedWeb = `kubesplice_service_connections_ended_total{close="client-closed",ip_family="IPv4",namespace="default",port="http",protocol="tcp",service="web"}`

func TestIncrementsThatRaceToBeTheFirstAllCount(t *testing.T) {
	const rounds, racers = 500, 8
	m := newMetrics(t, status.MetricsConfig{})
	ports := make([]*service.Port, rounds)
	for i := range ports {
		ports[i] = newPort(fmt.Sprintf("web-%03d", i))
	}
	m.Sync(snapshot(ports...))
	for i, port := range ports {
		start := make(chan struct{})
		var race sync.WaitGroup
		for range racers {
			race.Go(func() {
				<-start
				m.Record(record(port.Name, proxy.ClientClosed))
				m.Error(fmt.Sprintf("part %d", i))
			})
		}
		close(start)
		race.Wait()
	}
	values := flat(scrape(t, m))
	for i, port := range ports {
		if n := values[strings.Replace(endedWeb, "web", port.Name.Service, 1)]; n != racers {
			t.Errorf("%v has %v connections, want %d", port.Name, n, racers)
		}
		if n := values[fmt.Sprintf(`kubesplice_errors_total{part="part %d"}`, i)]; n != racers {
			t.Errorf("part %d has %v errors, want %d", i, n, racers)
		}
	}
}

func TestSeriesStayHoweverLongNothingHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetrics(t, status.MetricsConfig{})
		web := newPort("web")
		m.Sync(snapshot(web))
		m.Record(record(web.Name, proxy.ClientClosed))
		m.Error("source")
		time.Sleep(24 * time.Hour)
		wantSeries(t, m, endedWeb, 1)
		wantSeries(t, m, `kubesplice_errors_total{part="source"}`, 1)
	})
}

// seriesOf returns the series that have anything to do with a Service.
func seriesOf(t *testing.T, m *status.Metrics, name string) (lines []string) {
	for _, line := range ours(flat(scrape(t, m))) {
		if strings.Contains(line, `service="`+name+`"`) {
			lines = append(lines, line)
		}
	}
	return lines
}

func TestSeriesOfAServiceLeaveWithIt(t *testing.T) {
	m := newMetrics(t, status.MetricsConfig{})
	api, db, web := newPort("api"), newPort("db"), newPort("web")
	six := newPort("web")
	six.Name.Family = service.IPv6
	ports := []*service.Port{api, db, web, six}
	m.Sync(snapshot(ports...))
	for _, p := range ports {
		for _, how := range []proxy.Close{proxy.ClientClosed, proxy.BackendReset, proxy.NoEndpoints} {
			m.Record(record(p.Name, how))
		}
	}
	changed := newPort("db", "10.1.1.1:80") // the same name, another pointer
	m.Sync(snapshot(changed, newPort("new"), six))
	for name, want := range map[string]int{"api": 0, "db": 3, "web": 3, "new": 0} {
		if lines := seriesOf(t, m, name); len(lines) != want {
			t.Errorf("%s has %d series, want %d: %s", name, len(lines), want, strings.Join(lines, "\n"))
		}
	}
	if lines := seriesOf(t, m, "web"); len(lines) > 0 && !strings.Contains(lines[0], "IPv6") {
		t.Errorf("the wrong family stayed: %s", lines[0])
	}

	m.Record(record(web.Name, proxy.ClientClosed)) // a connection that outlived its Service
	if lines := seriesOf(t, m, "web"); len(lines) != 3 {
		t.Errorf("a late connection brought back %v", lines)
	}
	m.Record(record(six.Name, proxy.ClientClosed))
	wantSeries(t, m, strings.Replace(endedWeb, "IPv4", "IPv6", 1), 2)
	m.Sync(snapshot(changed, web, six))
	m.Record(record(web.Name, proxy.ClientClosed))
	wantSeries(t, m, endedWeb, 1)
	m.Sync(snapshot())
	for _, name := range []string{"api", "db", "web"} {
		if lines := seriesOf(t, m, name); len(lines) > 0 {
			t.Errorf("without any Service there is still %v", lines)
		}
	}
}

func TestServicesThatChangeUnderLoadLeaveNothingBehind(t *testing.T) {
	m := newMetrics(t, status.MetricsConfig{})
	var now atomic.Pointer[service.Port]
	now.Store(newPort("web-0"))
	done := make(chan struct{})
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					m.Record(record(now.Load().Name, proxy.ClientClosed))
				}
			}
		})
	}
	for i := range 20000 {
		now.Store(newPort(fmt.Sprintf("web-%d", i)))
		m.Sync(snapshot(now.Load()))
	}
	close(done)
	load.Wait()
	m.Sync(snapshot())
	for _, line := range ours(flat(scrape(t, m))) {
		if strings.Contains(line, "web-") {
			t.Errorf("no Service is left, but %s", line)
		}
	}
}

func TestNoLabelHoldsAClientsAddress(t *testing.T) {
	m := newMetrics(t, status.MetricsConfig{})
	web := newPort("web")
	m.Sync(snapshot(web))
	r := record(web.Name, proxy.DialFailed)
	r.Err = errors.New("dial 192.0.2.77:4711")
	m.Record(r)
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	var events bytes.Buffer
	check(t, m.Dump(&events))
	for _, address := range []string{"192.0.2.77", "198.51.100.5"} {
		if strings.Contains(w.Body.String(), address) || strings.Contains(events.String(), address) {
			t.Errorf("%s is to be read", address)
		}
	}
}

func TestDialsAreMeasuredByOutcome(t *testing.T) {
	m := newMetrics(t, status.MetricsConfig{})
	direct := record(newPort("web").Name, proxy.RefusedDirect)
	direct.Attempts = 0
	for _, r := range []proxy.Record{
		record(newPort("web").Name, proxy.ClientClosed), record(newPort("web").Name, proxy.IdleLimit),
		record(newPort("web").Name, proxy.DialFailed), direct,
	} {
		m.Record(r)
	}
	wantSeries(t, m, `kubesplice_dial_duration_seconds{outcome="reached"}`, 2)
	wantSeries(t, m, `kubesplice_dial_duration_seconds{outcome="failed"}`, 1)
}

func TestNamesThatAreNoTextDoNotSpoilTheScrape(t *testing.T) {
	m := newMetrics(t, status.MetricsConfig{})
	m.Error("source\xff")
	m.Error("rules")
	wantSeries(t, m, `kubesplice_errors_total{part="rules"}`, 1)
	wantSeries(t, m, "kubesplice_errors_total{part=\"source\uFFFD\"}", 1)
}

func TestDumpShowsTheEventsOfTheLastMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetrics(t, status.MetricsConfig{})
		web := newPort("web")
		m.Sync(snapshot(web))
		m.Error("old")
		time.Sleep(time.Hour)
		at := time.Now().UTC().Format(time.RFC3339)
		m.Record(record(web.Name, proxy.ClientClosed))
		m.Record(record(newPort("other").Name, proxy.ClientClosed))
		m.Rules("nat", service.IPv6, 12, 3)
		time.Sleep(10 * time.Second)
		later := time.Now().UTC().Format(time.RFC3339)
		m.Error("source")
		var got bytes.Buffer
		check(t, m.Dump(&got))
		want := strings.NewReplacer("SINCE", time.Now().Add(-time.Minute).UTC().Format(time.RFC3339), "AT ", at+" ", "NOW ", later+" ").Replace(
			`events since SINCE
AT gauge kubeproxy.sync_proxy_rules_iptables_last{table="nat",ip_family="IPv6"} 3
AT gauge kubeproxy.sync_proxy_rules_iptables_total{table="nat",ip_family="IPv6"} 12
AT counter kubesplice.service_connections_ended_total{close="client-closed"} 2
AT sample kubesplice.dial_duration_seconds{outcome="reached"} count=2 min=0.002 mean=0.002 max=0.002
NOW counter kubesplice.errors_total{part="source"} 1
`)
		if got.String() != want {
			t.Errorf("dumped\n%s\nwant\n%s", &got, want)
		}
	})
}
