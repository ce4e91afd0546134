package main

import (
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

// churnEnv makes the churn test last longer, such as 60s; see the Makefile.
const churnEnv = "KUBE_SPLICE_CHURN"

// newcomers are clients that ask one question each, a rate of them a second.
type newcomers struct {
	asked, answered atomic.Int64
}

// come sends so many clients from a machine. As many as come in ten milliseconds come at
// once.
func (n *newcomers) come(from *lab.Namespace, address string, rate, all int) error {
	return from.Do(func() error {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		clients, answer := make([]net.Conn, 0, rate/100), make([]byte, 10)
		for ; all > 0; all -= cap(clients) {
			<-tick.C
			for range cap(clients) {
				client, err := net.Dial("udp", address)
				if err != nil {
					return err
				}
				clients = append(clients, client)
				_, _ = client.Write([]byte("?"))
				n.asked.Add(1)
			}
			for _, client := range clients {
				_ = client.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
				if _, err := client.Read(answer); err == nil {
					n.answered.Add(1)
				}
				_ = client.Close()
			}
			clients = clients[:0]
		}
		return nil
	})
}

// footprint is what the program holds.
type footprint struct{ sockets, descriptors, goroutines, heap int }

var (
	goroutinesLine = regexp.MustCompile(`goroutine profile: total (\d+)`)
	heapLine       = regexp.MustCompile(`# HeapAlloc = (\d+)`)
)

// footprint asks the program, which must have been started with --profiling.
func (p *program) footprint(c *cluster) footprint {
	c.t.Helper()
	number := func(page string, line *regexp.Regexp) int {
		_, body, err := get(c.Node, "http://127.0.0.1:10249/debug/pprof/"+page)
		check(c.t, err)
		found := line.FindStringSubmatch(body)
		if found == nil {
			c.t.Fatalf("%s has no line like %v", page, line)
		}
		n, err := strconv.Atoi(found[1])
		check(c.t, err)
		return n
	}
	heap := number("heap?debug=1&gc=1", heapLine)
	return footprint{p.sockets(), p.descriptors(), number("goroutine?debug=1", goroutinesLine), heap}
}

func TestUDPClientsThatComeAndGoLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	during, most := 5*time.Second, 1000
	if text := os.Getenv(churnEnv); text != "" {
		var err error
		during, err = time.ParseDuration(text)
		check(t, err)
		most = 10000
	}
	c := newCluster(t)
	serveUDP(t, c.Pod("pod-a").Namespace, ":8080", echoUDP)
	c.publishUDP(podA)
	c.serveAll("pod-b")
	c.apply("web", newService("web", "10.96.0.10"), newSlice("web", []string{podB}))
	p := c.start("--udp-timeout", "5s", "--udp-max-flows", strconv.Itoa(most), "--connection-log", "off", "--connection-log-file", "",
		"--profiling", "--conntrack-udp-timeout", "3s", "--conntrack-udp-timeout-stream", "3s")
	var clients newcomers
	check(t, clients.come(c.client(), udpAddress, 100, 100)) // buffers are made once
	eventually(t, func() error { return wantFlows(c, 0) })
	before := p.footprint(c)

	started := time.Now()
	others := askSteadily(t, c.Outside, webAddress, 50*time.Millisecond)
	check(t, clients.come(c.client(), udpAddress, 5000, int(5000*during.Seconds())))
	for _, a := range others.stop() {
		if a.who != "pod-b" {
			t.Errorf("a client of TCP meanwhile: %v", a)
		}
	}
	asked, answered := clients.asked.Load(), clients.answered.Load()
	t.Logf("%d clients in %v, %d answered", asked, time.Since(started), answered)
	if answered < asked/2 {
		t.Errorf("of %d clients only %d were answered", asked, answered)
	}
	if _, body, err := get(c.Node, metricsPage); err != nil || strings.Contains(body, "\nkubesplice_flows_evicted_total 0\n") {
		t.Errorf("no flow has made room for others (%v)", err)
	}
	eventually(t, func() error { return wantFlows(c, 0) })
	eventually(t, func() error { return before.isBack(p.footprint(c)) })
}

// isBack returns an error if more is held than before. The heap may have grown by what
// is kept for later use, which is less than what a thousand flows would take.
func (f footprint) isBack(now footprint) error {
	if now.sockets > f.sockets || now.descriptors > f.descriptors+10 || now.goroutines > f.goroutines+2 || now.heap > f.heap+1<<20 {
		return fmt.Errorf("the program holds %+v, before the clients %+v", now, f)
	}
	return nil
}

const metricsPage = "http://127.0.0.1:10249/metrics"

// wantFlows tells whether there are so many flows.
func wantFlows(c *cluster, n int) error {
	_, body, err := get(c.Node, metricsPage)
	if series := fmt.Sprintf("\nkubesplice_flows_active %d\n", n); err == nil && !strings.Contains(body, series) {
		err = fmt.Errorf("there is no series %q", series)
	}
	return err
}

func TestUDPClientsBeyondTheDescriptorsMakeRoomForEachOther(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	serveUDP(t, c.Pod("pod-a").Namespace, ":8080", echoUDP)
	c.publishUDP(podA)
	c.backend("pod-b", echo)
	c.apply("web", newService("web", "10.96.0.10"), newSlice("web", []string{podB}))
	p := c.launch("ulimit -n 1024", "--udp-timeout", "2s")
	p.waitReady()
	before := p.sockets()
	connection := connect(t, c.client(), webAddress)
	var clients newcomers
	for range 5 { // 5,000 ports
		check(t, clients.come(c.client(), udpAddress, 2500, 1000))
		exchange(t, connection, "ping")
		exchange(t, connect(t, c.Outside, webAddress), "ping")
	}
	if clients.answered.Load() == 0 {
		t.Error("nobody is answered")
	}
	eventually(t, func() error {
		if countClosed(p.records(1), "evicted") == 0 {
			return fmt.Errorf("of %d clients none made room for others", clients.asked.Load())
		}
		return nil
	})
	eventually(t, func() error {
		if now := p.sockets(); now > before+2+12 { // the connections' sockets
			return fmt.Errorf("%d sockets, before the clients %d", now, before)
		}
		return nil
	})
	if answer, err := askBy(udpClient(t, c.client(), udpAddress), "back", patience); answer != "back" {
		t.Errorf("then answered %q (%v)", answer, err)
	}
}
