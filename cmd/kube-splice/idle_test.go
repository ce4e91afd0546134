package main

import (
	"testing"
	"time"
)

func TestIdleTimeoutOfAServiceEndsItsIdleConnections(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	accepted := c.accepting("pod-a")
	c.backend("pod-b", echo)
	c.apply("impatient", newService("impatient", "10.96.0.20", annotated("idle-timeout", "1s")), newSlice("impatient", []string{podA}))
	c.apply("busy", newService("busy", "10.96.0.30", annotated("idle-timeout", "1s")), newSlice("busy", []string{podB}))
	c.publish(podB)
	p := c.start()

	patient, busy := connect(t, c.client(), webAddress), connect(t, c.client(), "10.96.0.30:80")
	exchange(t, patient, "ping")
	started := time.Now()
	idle := connect(t, c.client(), "10.96.0.20:80")
	backend := take(t, accepted)
	for range 24 {
		time.Sleep(100 * time.Millisecond)
		exchange(t, busy, "busy")
	}
	wantReset(t, "client", idle, 0)
	wantReset(t, "backend", backend, 0)
	exchange(t, busy, "busy")
	exchange(t, patient, "pong")

	r := p.records(1)[0]
	if r.Service != "default/impatient:http" || r.Close != "idle" || r.Duration < 1000 {
		t.Errorf("logged %+v, want the idle connection's end after 1 s", r)
	}
	if age := r.Time.Sub(started); age > patience {
		t.Errorf("the idle connection was ended only after %v", age)
	}
	wantReset(t, "busy client", busy, 0) // which is idle now
	wantLogged(t, p, busy, "idle")
}
