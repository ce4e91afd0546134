//go:build cluster

package main

import (
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-splice/kube-splice/lab"
)

const gatePort = 7443

// gate stands between the program and the API server, and decides what passes.
type gate struct {
	t        testing.TB
	node     *lab.Namespace
	listener net.Listener
	copying  sync.WaitGroup

	mu     sync.Mutex
	opened chan struct{} // closed while bytes pass
	passed []*passage
}

// passage is a connection through the gate.
type passage struct {
	client, server net.Conn
	lost           bool // all that is sent
}

// newGate makes the program of a cluster reach the API server through an open gate.
func (s *served) newGate() *gate {
	s.t.Helper()
	address := fmt.Sprintf("%s:%d", lab.NodeIP, gatePort)
	listener, err := s.Node.Listen("tcp", address)
	check(s.t, err)
	g := &gate{t: s.t, node: s.Node, listener: listener, opened: make(chan struct{})}
	close(g.opened)
	g.copying.Go(g.accept)
	s.t.Cleanup(g.close)

	config, err := clientcmd.LoadFromFile(s.kubeconfig)
	check(s.t, err)
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + address
	}
	s.kubeconfig = filepath.Join(s.t.TempDir(), "kubeconfig")
	check(s.t, clientcmd.WriteToFile(*config, s.kubeconfig))
	return g
}

func (g *gate) accept() {
	for {
		client, err := g.listener.Accept()
		if err != nil {
			return
		}
		g.copying.Go(func() { g.pass(client) })
	}
}

// pass leads a client to the API server, when the gate is open.
func (g *gate) pass(client net.Conn) {
	defer func() { _ = client.Close() }()
	p := &passage{client: client}
	g.mu.Lock()
	g.passed = append(g.passed, p)
	g.mu.Unlock()
	<-g.state()
	server, err := g.node.Dial("tcp", fmt.Sprintf("%s:%d", lab.NodeIP, apiPort), patience)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	g.mu.Lock()
	p.server = server
	g.mu.Unlock()
	var answers sync.WaitGroup
	answers.Go(func() { g.copy(p, client, server) })
	g.copy(p, server, client)
	answers.Wait()
}

// copy passes on what one side sends, and its end. What is lost has no end either:
// the other side hears nothing any more.
func (g *gate) copy(p *passage, to, from net.Conn) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		<-g.state()
		if g.isLost(p) {
			if err != nil {
				return
			}
			continue
		}
		if n > 0 {
			_, _ = to.Write(buffer[:n])
		}
		if err != nil {
			_ = to.Close()
			return
		}
	}
}

func (g *gate) state() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opened
}

func (g *gate) isLost(p *passage) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return p.lost
}

// hold keeps back all that is sent from now on, until open.
func (g *gate) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.opened = make(chan struct{})
}

// open lets pass what was held back, and all that follows.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.opened:
	default:
		close(g.opened)
	}
}

// lose makes the connections there are lose all that is sent, without a word to
// either side, as a firewall does that forgot them. Later ones pass.
func (g *gate) lose() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.passed {
		p.lost = true
	}
}

// cut ends the connections there are.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.passed {
		p.lost = true // not even what was under way
		_ = p.client.Close()
		if p.server != nil {
			_ = p.server.Close()
		}
	}
	g.passed = nil
}

// close ends everything.
func (g *gate) close() {
	_ = g.listener.Close()
	g.cut()
	g.open()
	g.copying.Wait()
}
