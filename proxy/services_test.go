package proxy_test

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
)

// countsOf returns what was counted for a Service port, and whether it is there.
func (r *rig) countsOf(p *service.Port) (proxy.ServiceCounts, bool) {
	for _, c := range r.Services() {
		if c.Name == p.Name {
			return c, true
		}
	}
	return proxy.ServiceCounts{}, false
}

func TestConnectionsAndBytesAreCountedForTheirServicePort(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	r := newRig(t)
	web, idle := newPort("web", a), newPort("idle")
	at := r.open(idle, web)[1]

	c := connect(t, at)
	c.roundTrip(t)
	want := proxy.ServiceCounts{Name: web.Name, Accepted: 1, Active: 1, Endpoints: 1}
	if got, _ := r.countsOf(web); got != want {
		t.Errorf("while connected: %+v, want %+v", got, want)
	}
	_ = c.Close()
	r.record()
	want.Active, want.Up, want.Down = 0, int64(len("hello\n")), int64(len("a\nhello\n"))
	if got, _ := r.countsOf(web); got != want {
		t.Errorf("afterwards: %+v, want %+v", got, want)
	}
	if got, _ := r.countsOf(idle); got != (proxy.ServiceCounts{Name: idle.Name}) {
		t.Errorf("the other Service port: %+v, want nothing", got)
	}
	if all := r.Counts(); all.Up != want.Up || all.Down != want.Down {
		t.Errorf("%d and %d bytes in all, want %d and %d", all.Up, all.Down, want.Up, want.Down)
	}
}

func TestFailedDialsAndRetriesAreCounted(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	gone, stop := echo(t, "gone", "10.88.0.12:0")
	stop()
	r := newRig(t)
	web, dead := newPort("web", a, gone), newPort("dead", gone)
	at := r.open(web, dead)
	dials := int64(0)
	for range 2 { // round-robin: one of the two meets the dead endpoint first, at least
		_ = connect(t, at[0]).Close()
		dials += int64(r.record().Attempts)
	}
	wantReset(t, at[1])
	r.record()
	if got, _ := r.countsOf(web); got.FailedTries != dials-2 || dials < 3 {
		t.Errorf("%+v, want what failed of %d dials for 2 connections", got, dials)
	}
	if got, _ := r.countsOf(dead); got.FailedTries != 1 || got.Accepted != 1 || got.Active != 0 {
		t.Errorf("%+v, want one failed dial and nobody served", got)
	}
	if all := r.Counts(); all.Retries != dials-2 || all.FailedTries != dials-1 {
		t.Errorf("%d retries and %d failed dials in all, want %d and %d", all.Retries, all.FailedTries, dials-2, dials-1)
	}
}

func TestAffinityRecordsAreCounted(t *testing.T) {
	a, _ := echo(t, "a", "10.88.0.11:0")
	r := newRig(t)
	p := newPort("web", a)
	p.Policy.Affinity = time.Hour
	at := r.open(p)[0]
	connect(t, at)
	if got, _ := r.countsOf(p); !got.Affinity || got.AffinityRecords != 1 {
		t.Errorf("%+v, want one affinity record", got)
	}
}

func TestCountsLeaveWithTheirServicePort(t *testing.T) {
	r := newRig(t)
	p := newPort("web")
	r.open(p)
	r.open()
	r.Prune()
	if got, there := r.countsOf(p); there {
		t.Errorf("%+v is counted though the Service is gone", got)
	}
}

func TestCountsMayBeReadWhileServicesChange(t *testing.T) {
	r := newRig(t)
	done := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				r.Services()
			}
		}
	})
	for i := range 100 {
		p := newPort("web")
		p.ClusterIP = netip.AddrFrom4([4]byte{10, 96, 0, byte(i)})
		p.Policy.Affinity = time.Duration(i)
		r.open(p, newPort("other"))
		r.open()
		r.Prune()
	}
	close(done)
	reader.Wait()
}
