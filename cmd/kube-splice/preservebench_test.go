package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// BenchmarkConnection is what a connection from outside to a pod on the node costs the
// program in CPU, from connect to close with 64 bytes each way: with the client's address
// preserved and without. The kernel does much of the rules' work in other names.
func BenchmarkConnection(b *testing.B) {
	for _, preserve := range []string{"false", "true"} {
		b.Run("preserve="+preserve, func(b *testing.B) {
			c := newCluster(b)
			listener, err := c.Pod(localPod).Listen("tcp", ":8080")
			check(b, err)
			go serveOneEach(listener)
			b.Cleanup(func() { _ = listener.Close() })
			objects := policyCase{internal: inCluster, external: exLocal, endpoints: "local"}.objects(1, byIPv4)
			annotations("preserve-client-ip", preserve)(objects[0].(*corev1.Service))
			c.apply("policy", objects...)
			p := c.start()
			c.connectMany(byIPv4.ways(1)["nodePort"], 1000) // to warm up
			before := p.cpu()
			for b.Loop() {
				c.connectMany(byIPv4.ways(1)["nodePort"], 1000)
			}
			b.ReportMetric(float64((p.cpu()-before).Microseconds())/float64(b.N)/1000, "µs-of-CPU/connection")
		})
	}
}

// serveOneEach answers what comes first on each connection, and closes it.
func serveOneEach(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			b := make([]byte, 64)
			if _, err := io.ReadFull(conn, b); err == nil {
				_, _ = conn.Write(b)
			}
		}()
	}
}

// connectMany makes n connections from outside, four at a time.
func (c *cluster) connectMany(address string, n int) {
	c.t.Helper()
	const clients = 4
	var connecting sync.WaitGroup
	for range clients {
		connecting.Go(func() {
			err := c.Outside.Do(func() error {
				for range n / clients {
					if err := connectOnce(address); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				c.t.Error(err)
			}
		})
	}
	connecting.Wait()
}

func connectOnce(address string) error {
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, strings.Repeat("x", 64)); err != nil {
		return err
	}
	_, err = io.ReadAll(conn)
	return err
}

// cpu is what the program's threads have computed.
func (p *program) cpu() (total time.Duration) {
	p.t.Helper()
	tasks := fmt.Sprintf("/proc/%d/task", p.cmd.Process.Pid)
	threads, err := os.ReadDir(tasks)
	check(p.t, err)
	for _, thread := range threads {
		text, err := os.ReadFile(tasks + "/" + thread.Name() + "/schedstat")
		check(p.t, err)
		ran, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		check(p.t, err)
		total += time.Duration(ran)
	}
	return total
}
