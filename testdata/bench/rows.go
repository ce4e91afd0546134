package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// load is what the clients do.
type load struct {
	mode        string // of ends/tcp.c
	connections int
	up, down    int // bytes of an ask, and of its answer, without their heads
}

// row is a load and what is measured under it.
type row struct {
	name     string // for -rows
	load     load
	logged   bool // kube-splice writes its connection log
	measures []measure
}

// sample is one measurement of one proxy.
type sample struct {
	asks, seconds, p50, p99 float64
	cpu, endsCPU            time.Duration // of the proxy; of both ends
	resident, descriptors   int           // what the proxy took meanwhile
	bytes                   float64
}

// measure is one figure.
type measure struct {
	what    string
	unit    string
	of      func(sample) float64
	ofProxy bool // and nothing without one
	more    bool // is better
}

func microseconds(what string, of func(sample) float64) measure {
	return measure{what: what, unit: "µs", of: of}
}

// cpuPer is the proxy's processor time for each of something.
func cpuPer(what, unit string, in time.Duration, of func(sample) float64) measure {
	return measure{what: what, unit: unit, ofProxy: true, of: func(s sample) float64 { return float64(s.cpu) / float64(in) / of(s) }}
}

func asks(s sample) float64      { return s.asks }
func gigabytes(s sample) float64 { return s.bytes / 1e9 }
func p50(s sample) float64       { return s.p50 }
func p99(s sample) float64       { return s.p99 }

const mass = 64 << 20 // bytes of one ask or answer in bulk

func bulk(name, what string, l load) row {
	return row{name: name, load: l, measures: []measure{
		cpuPer("CPU per GB, "+what, "ms", time.Millisecond, gigabytes),
		{what: "throughput, " + what, unit: "GB/s", more: true, of: func(s sample) float64 { return gigabytes(s) / s.seconds }},
	}}
}

var rows = []row{
	bulk("down-1", "1 connection, backend to client", load{"load", 1, 0, mass}),
	bulk("down-8", "8 connections, backend to client", load{"load", 8, 0, mass}),
	bulk("up-1", "1 connection, client to backend", load{"load", 1, mass, 0}),
	bulk("up-8", "8 connections, client to backend", load{"load", 8, mass, 0}),
	{name: "requests-32", load: load{"load", 32, 0, 0}, measures: []measure{
		cpuPer("CPU per request, 32 connections", "µs", time.Microsecond, asks),
		microseconds("latency p50, 32 connections", p50),
		microseconds("latency p99, 32 connections", p99),
	}},
	{name: "requests-1", load: load{"load", 1, 0, 0}, measures: []measure{
		cpuPer("CPU per request, 1 connection", "µs", time.Microsecond, asks),
		microseconds("latency p50, 1 connection", p50),
		microseconds("latency p99, 1 connection", p99),
	}},
	{name: "connections", load: load{"new", 32, 0, 0}, measures: []measure{
		cpuPer("CPU per connection, 32 at a time", "µs", time.Microsecond, asks),
		{what: "connections a second", unit: "1/s", more: true, of: func(s sample) float64 { return s.asks / s.seconds }},
	}},
	{name: "connections-logged", load: load{"new", 32, 0, 0}, logged: true, measures: []measure{
		cpuPer("CPU per connection, kube-splice's logged", "µs", time.Microsecond, asks),
	}},
	{name: "idle", load: load{mode: "idle"}, measures: []measure{
		{what: "resident memory, an idle connection", unit: "B", ofProxy: true, of: func(s sample) float64 { return float64(s.resident) / s.asks }},
		{what: "descriptors, an idle connection", ofProxy: true, of: func(s sample) float64 { return float64(s.descriptors) / s.asks }},
	}},
}

func rowNames() (names []string) {
	for _, r := range rows {
		names = append(names, r.name)
	}
	return names
}

// measure measures every proxy under the load of a row, in turns. It returns the samples
// of each.
func (b *run) measure(r row, proxies []proxy) ([][]sample, error) {
	samples := make([][]sample, len(proxies))
	for round := range b.rounds {
		for i, p := range proxies {
			if p.command == nil && r.needsProxy() {
				continue
			}
			s, err := b.once(r, p)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", r.name, p.name, err)
			}
			samples[i] = append(samples[i], s)
			fmt.Fprintf(os.Stderr, "%s, round %d, %s: %.0f asks in %.2f s, processor time %.2f s of the proxy, %.2f s of the ends\n",
				r.name, round+1, p.name, s.asks, s.seconds, s.cpu.Seconds(), s.endsCPU.Seconds())
		}
	}
	return samples, nil
}

// needsProxy says whether nothing of a row can be measured without a proxy.
func (r row) needsProxy() bool {
	for _, m := range r.measures {
		if !m.ofProxy {
			return false
		}
	}
	return true
}

// once measures a proxy, which runs for that long only.
func (b *run) once(r row, p proxy) (s sample, err error) {
	at, err := b.start(p, r.logged)
	if err != nil {
		return s, err
	}
	defer at.stop()
	warm := r.load
	if r.load.mode == "idle" {
		warm = load{mode: "new", connections: 32}
		r.load.connections = b.idleConnections(p)
	}
	warmed, err := b.ask(at, warm, b.length/5)
	if err != nil {
		return s, at.failed(err)
	}
	if r.load.mode == "idle" {
		time.Sleep(restful)
	}
	if s, err = b.ask(at, r.load, b.length); err != nil {
		return s, at.failed(err)
	}
	if r.logged && p.ours {
		at.stop() // which writes what is still to be written
		err = b.checkLog(int(warmed.asks + s.asks))
	}
	return s, err
}

// restful is how long idle connections, and what those before them took, are left alone.
const restful = time.Second

// ask runs clients, and measures what the proxy takes meanwhile.
func (b *run) ask(at place, l load, length time.Duration) (s sample, err error) {
	before, backend := usageOf(at.proxy), usageOf(b.backend)
	client := b.client(at, l, length)
	out, outErr := client.StdoutPipe()
	in, inErr := client.StdinPipe() // whose end ends idle clients
	if err := errors.Join(outErr, inErr); err != nil {
		return s, err
	}
	if err := client.Start(); err != nil {
		return s, err
	}
	_, scanErr := fmt.Fscan(bufio.NewReader(out), &s.asks, &s.seconds, &s.p50, &s.p99)
	if l.mode == "idle" {
		time.Sleep(restful)
	}
	s.take(before, usageOf(at.proxy))
	s.endsCPU = usageOf(b.backend).cpu - backend.cpu + usageOf(client).cpu
	s.bytes = s.asks * float64(l.up+l.down)
	_ = in.Close()
	if err := client.Wait(); err != nil {
		return s, fmt.Errorf("clients: %w", err)
	}
	return s, scanErr
}

// checkLog returns an error unless the connection log has a line for every connection,
// of which there were so many and those that waited for the proxy to serve.
func (b *run) checkLog(connections int) error {
	text, err := os.ReadFile(b.connectionLog())
	if lines := bytes.Count(text, []byte("\n")); err == nil && lines < connections {
		err = fmt.Errorf("the connection log has %d lines for %d connections", lines, connections)
	}
	return errors.Join(err, os.Remove(b.connectionLog()))
}

// idleConnections is how many of them the limit on open files allows a proxy, in
// thousands.
func (b *run) idleConnections(p proxy) int {
	most := int(b.limit-500) / int(p.descriptors) / 1000 * 1000
	return min(b.idle, most)
}

// client returns the clients of a load.
func (b *run) client(at place, l load, length time.Duration) *exec.Cmd {
	args := []string{l.mode, at.net, fmt.Sprint(at.port)}
	if l.mode == "idle" {
		args = append(args, fmt.Sprint(l.connections))
	} else {
		args = append(args, fmt.Sprint(length.Seconds()), fmt.Sprint(l.connections), fmt.Sprint(l.up), fmt.Sprint(l.down))
	}
	return command(b.endsCores, b.ends(), args...)
}
