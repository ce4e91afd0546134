package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// churning is a Service that changes all the time.
type churning struct {
	name, address string
	number        int32 // of its port
	nodePort      int32 // 0: none
	pod           int   // which of podNames is its endpoint; -1: none
	gone          bool
}

var (
	podNames     = []string{"pod-a", "pod-b", "pod-c"}
	podAddresses = []string{podA, podB, podC}
)

// change makes one change of any kind.
func (s *churning) change(random *rand.Rand, freeNodePorts *[]int32) {
	switch random.IntN(5) {
	case 0:
		s.gone = !s.gone
	case 1:
		s.number = 80 + random.Int32N(5)
	case 2: // take a node port, perhaps one that another Service has just given up
		if s.nodePort != 0 {
			*freeNodePorts = append(*freeNodePorts, s.nodePort)
		}
		s.nodePort, *freeNodePorts = (*freeNodePorts)[0], (*freeNodePorts)[1:]
	case 3:
		s.pod = random.IntN(4) - 1
	case 4:
		s.address = fmt.Sprintf("10.96.%d.%s", 1+random.IntN(3), s.name)
	}
}

func (s *churning) apply(c *cluster) {
	c.t.Helper()
	if s.gone {
		err := os.Remove(c.manifestPath(s.name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			c.t.Fatal(err)
		}
		return
	}
	edits := []func(*corev1.Service){port(s.number)}
	if s.nodePort != 0 {
		edits = append(edits, nodePort(s.nodePort))
	}
	var endpoints []string
	if s.pod >= 0 {
		endpoints = podAddresses[s.pod : s.pod+1]
	}
	c.apply(s.name, newService("s"+s.name, s.address, edits...), newSlice("s"+s.name, endpoints))
}

// portals returns the addresses from outside.
func (s *churning) portals() []string {
	if s.gone {
		return nil
	}
	all := []string{fmt.Sprintf("%s:%d", s.address, s.number)}
	if s.nodePort != 0 {
		all = append(all, fmt.Sprintf("%s:%d", lab.NodeIP, s.nodePort))
	}
	return all
}

// served tells whether the Service is served as it says.
func (s *churning) served(c *cluster) error {
	for _, address := range s.portals() {
		if s.pod < 0 {
			if err := refused(c.Outside, address); err != nil {
				return fmt.Errorf("%s: %w", address, err)
			}
		} else if err := answeredBy(c, address, podNames[s.pod]); err != nil {
			return err
		}
	}
	return nil
}

func TestManyQuickChangesEndInTheRightStateAndFailNoOtherService(t *testing.T) {
	forEachBackend(t, func(c *cluster, p *programs) {
		c.serveAll(podNames...)
		c.apply("untouched", newService("untouched", "10.96.0.10", nodePort(30000)), newSlice("untouched", []string{podA}))
		random := rand.New(rand.NewPCG(1, 2))
		freeNodePorts := make([]int32, 30)
		for i := range freeNodePorts {
			freeNodePorts[i] = 30001 + int32(i)
		}
		services := make([]*churning, 20)
		for i := range services {
			services[i] = &churning{name: fmt.Sprint(100 + i), address: fmt.Sprintf("10.96.1.%d", 100+i), number: 80}
		}
		program := c.launch(p.setup())
		program.waitReady()
		before := program.sockets()
		clients := []*traffic{
			askSteadily(c.t, c.Outside, "10.96.0.10:80", 20*time.Millisecond),
			askSteadily(c.t, c.client(), lab.NodeIP+":30000", 20*time.Millisecond),
		}
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			s := services[random.IntN(len(services))]
			s.change(random, &freeNodePorts)
			s.apply(c)
			time.Sleep(time.Duration(random.IntN(40)) * time.Millisecond)
		}
		for _, f := range clients {
			checkAllAnswered(c, f.stop())
		}
		checkEnd(c, p, services)
		for _, s := range services {
			s.gone = true
			s.apply(c)
		}
		checkEnd(c, p, services)
		eventually(c.t, func() error {
			if now := program.sockets(); now > before {
				return fmt.Errorf("%d sockets are open, before the changes %d were", now, before)
			}
			return nil
		})
	})
}

func checkAllAnswered(c *cluster, attempts []attempt) {
	c.t.Helper()
	for _, a := range attempts {
		if a.who != "pod-a" {
			c.t.Errorf("of %d attempts at the untouched Service: %v", len(attempts), a)
		}
	}
	if len(attempts) < 50 { // a busy machine makes fewer than 500
		c.t.Errorf("only %d attempts", len(attempts))
	}
}

// checkEnd demands what the manifests say in the end, and nothing besides.
func checkEnd(c *cluster, p *programs, services []*churning) {
	c.t.Helper()
	want, listeners := []string{"10.96.0.10:80", ":30000"}, 1
	for _, s := range services {
		for _, address := range s.portals() {
			want = append(want, strings.TrimPrefix(address, lab.NodeIP))
		}
		if !s.gone && s.pod >= 0 { // a parked listener keeps its port without listening
			listeners++
		}
	}
	within(c.t, 5*time.Second, func() error { return p.wantPortals(want...) })
	within(c.t, 5*time.Second, func() error { return wantListeners(c, listeners) })
	for _, s := range services {
		eventually(c.t, func() error { return s.served(c) })
	}
}

// sockets counts the program's open sockets. Its pipes are kept for later use.
func (p *program) sockets() int {
	p.t.Helper()
	folder := fmt.Sprintf("/proc/%d/fd/", p.cmd.Process.Pid)
	entries, err := os.ReadDir(folder)
	check(p.t, err)
	n := 0
	for _, e := range entries {
		if what, _ := os.Readlink(folder + e.Name()); strings.HasPrefix(what, "socket:") {
			n++
		}
	}
	return n
}

// steadySockets is sockets when none has come or gone for a moment.
func (p *program) steadySockets() int {
	p.t.Helper()
	last := -1
	eventually(p.t, func() error {
		before := last
		if last = p.sockets(); last != before {
			time.Sleep(300 * time.Millisecond)
			return fmt.Errorf("%d sockets, and %d a moment ago", last, before)
		}
		return nil
	})
	return last
}
