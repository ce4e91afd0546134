package main

import (
	"fmt"
	"net"
	"testing"
	"time"
)

// newFlow opens a client of the Service dns and returns it with its first datagram as
// the backend has it.
func newFlow(c *cluster, backend received, address string) (net.Conn, sent) {
	c.t.Helper()
	client := udpClient(c.t, c.client(), address)
	send(c.t, client, "first")
	return client, backend.take(c.t)
}

func TestUDPAnswerThatTakesSecondsIsDelivered(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	backend := c.receiving("pod-a")
	c.publishUDP(podA)
	p := c.start()
	client, first := newFlow(c, backend, udpAddress)
	time.Sleep(4 * time.Second)
	first.answer(t, "late")
	wantHeard(t, client, "late")
	if r := p.finish(1)[0]; r.Close != "shutdown" {
		t.Errorf("logged %+v, want one flow that lived to the end", r)
	}
}

func TestUDPFlowEndsAfterItsIdleLimit(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	backend := c.receiving("pod-a")
	c.publishUDP(podA)
	p := c.start("--udp-timeout", "2s")
	before := p.steadySockets()
	client, first := newFlow(c, backend, udpAddress)
	if n := p.sockets(); n <= before {
		t.Errorf("%d sockets with a flow, %d without", n, before)
	}
	r := p.records(1)[0]
	if r.Close != "idle" || r.Duration < 2000 || r.Service != "default/dns:dns-udp" || r.UpCount != 1 || r.DownCount != 0 {
		t.Errorf("logged %+v, want an idle flow that lasted 2 s", r)
	}
	if age := r.Duration; age > 1000*patience.Seconds() {
		t.Errorf("it lasted %v ms", age)
	}
	first.answer(t, "too late")
	if n := p.steadySockets(); n != before {
		t.Errorf("%d sockets after the flow, %d before", n, before)
	}
	send(t, client, "again")
	backend.take(t).answer(t, "in time")
	wantHeard(t, client, "in time")
}

// Media servers and subscriptions are like that: one question, answers for ever.
func TestUDPFlowIsKeptByEitherDirection(t *testing.T) {
	t.Parallel()
	const limit, pause, times = "3s", 300 * time.Millisecond, 25 // more than twice the limit
	c := newCluster(t)
	backend := c.receiving("pod-a")
	c.publishUDP(podA)
	p := c.start("--udp-timeout", limit)

	client, first := newFlow(c, backend, udpAddress)
	for i := range times {
		time.Sleep(pause)
		first.answer(t, fmt.Sprint("push ", i))
		wantHeard(t, client, fmt.Sprint("push ", i))
	}
	for i := range times {
		time.Sleep(pause)
		send(t, client, fmt.Sprint("report ", i))
		if got := backend.take(t); got.text != fmt.Sprint("report ", i) || got.from.String() != first.from.String() {
			t.Fatalf("the backend received %q from %v, want report %d from %v", got.text, got.from, i, first.from)
		}
	}
	for _, r := range p.records(1) { // when neither goes on
		if r.Close != "idle" || r.UpCount != times+1 || r.DownCount != times {
			t.Errorf("logged %+v, want %d datagrams up and %d down", r, times+1, times)
		}
	}
}

// As with SIP: the client registers, then calls come from either side, and between
// them nothing for a while.
func TestUDPCallsGoBothWaysOnOneFlow(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	backend := c.receiving("pod-a")
	c.publishUDP(podA)
	p := c.start()
	phone, registration := newFlow(c, backend, "172.20.1.2:30053")
	registration.answer(t, "200 OK")
	wantHeard(t, phone, "200 OK")
	const calls = 4
	for call := range calls {
		time.Sleep(3 * time.Second)
		if call%2 == 0 { // the server's call
			registration.answer(t, "INVITE")
			wantHeard(t, phone, "INVITE")
			send(t, phone, "200 OK")
			wantFrom(t, backend.take(t), "200 OK", registration.from)
		} else {
			send(t, phone, "INVITE")
			wantFrom(t, backend.take(t), "INVITE", registration.from)
			registration.answer(t, "200 OK")
			wantHeard(t, phone, "200 OK")
		}
		for range 20 { // and voice both ways at once
			send(t, phone, "up")
			registration.answer(t, "down")
		}
		for range 20 {
			wantFrom(t, backend.take(t), "up", registration.from)
			wantHeard(t, phone, "down")
		}
	}
	if r := p.finish(1)[0]; r.UpCount != 1+21*calls || r.DownCount != 1+21*calls {
		t.Errorf("logged %+v, want one flow with %d datagrams each way", r, 1+21*calls)
	}
}

func wantFrom(t testing.TB, got sent, text string, from net.Addr) {
	t.Helper()
	if got.text != text || got.from.String() != from.String() {
		t.Fatalf("the backend received %q from %v, want %q from %v", got.text, got.from, text, from)
	}
}

func TestUDPIdleTimeoutOfAServiceIsItsOwn(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	backend := c.receiving("pod-a")
	c.publishUDP(podA)
	c.apply("impatient", newService("impatient", "10.96.0.54", udp, annotated("idle-timeout", "1s")), newUDPSlice("impatient", []string{podA}))
	p := c.start()
	newFlow(c, backend, udpAddress)
	newFlow(c, backend, "10.96.0.54:53")
	if r := p.records(1)[0]; r.Service != "default/impatient:dns-udp" || r.Close != "idle" || r.Duration < 1000 {
		t.Errorf("logged %+v, want the idle flow's end after 1 s", r)
	}
	p.finish(2)
}
