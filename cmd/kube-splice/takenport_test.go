package main

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

// greet lets every client of a listener read a word, until the listener is closed.
func greet(listener net.Listener, word string) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte(word))
		_ = conn.Close()
	}
}

func TestNodePortOfAnotherProgramStaysItsOwnUntilItIsFree(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a", "pod-b")
	p := c.programs("nft")
	taken, err := c.Node.Listen("tcp", ":30080")
	check(t, err)
	go greet(taken, "another program")
	c.apply("web", newService("web", "10.96.0.10", nodePort(30080)), newSlice("web", []string{podA}))
	c.apply("other", newService("other", "10.96.0.11", nodePort(30081)), newSlice("other", []string{podB}))
	program := c.launch(p.setup())
	program.waitReady()

	for address, pod := range map[string]string{
		"10.96.0.10:80": "pod-a", "10.96.0.11:80": "pod-b", "172.20.1.2:30081": "pod-b",
	} {
		check(t, answeredBy(c, address, pod))
	}
	check(t, p.wantPortals("10.96.0.10:80", "10.96.0.11:80", ":30081"))
	time.Sleep(3500 * time.Millisecond) // it is tried again meanwhile
	check(t, p.wantPortals("10.96.0.10:80", "10.96.0.11:80", ":30081"))
	if word := read(t, c, "172.20.1.2:30080"); word != "another program" {
		t.Errorf("port 30080 answers %q, want what listens there", word)
	}
	check(t, wantSaid(program, "30080", 1))
	check(t, wantSaid(program, "level=ERROR", 1))

	check(t, taken.Close())
	within(t, 15*time.Second, func() error { return answeredBy(c, "172.20.1.2:30080", "pod-a") })
	check(t, wantSaid(program, "solved", 1))
}

// read connects from outside and returns what it is sent.
func read(t *testing.T, c *cluster, address string) string {
	t.Helper()
	conn, err := c.Outside.Dial("tcp", address, 3*time.Second)
	check(t, err)
	defer func() { _ = conn.Close() }()
	check(t, conn.SetDeadline(time.Now().Add(3*time.Second)))
	buf := make([]byte, 100)
	n, err := conn.Read(buf)
	check(t, err)
	return string(buf[:n])
}

func TestExhaustedPortRangeStopsOnlyWhatFindsNoPort(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	p := c.programs("nft")
	for name, address := range map[string]string{"a": "10.96.0.10", "b": "10.96.0.11", "c": "10.96.0.12"} {
		c.apply(name, newService(name, address), newSlice(name, []string{podA}))
	}
	program := c.launch(p.setup(), "--proxy-port-range", "41000+2")
	program.waitReady()
	check(t, wantListeners(c, 3))
	for _, at := range c.listening() {
		if !strings.HasPrefix(at, "0.0.0.0:4100") || at > "0.0.0.0:41002" {
			t.Errorf("listening at %s, want 41000 to 41002", at)
		}
	}
	c.apply("d", newService("d", "10.96.0.13", nodePort(30080)), newSlice("d", []string{podA}))
	eventually(t, func() error { return wantSaid(program, "no port is free", 1) })
	time.Sleep(3500 * time.Millisecond) // it is tried again meanwhile
	check(t, wantSaid(program, "no port is free", 1))
	check(t, wantSaid(program, "level=ERROR", 1))
	check(t, p.wantPortals("10.96.0.10:80", "10.96.0.11:80", "10.96.0.12:80"))
	for _, address := range []string{"10.96.0.10:80", "10.96.0.11:80", "10.96.0.12:80"} {
		check(t, answeredBy(c, address, "pod-a"))
	}

	c.remove("a")
	soon(t, c.Outside, "10.96.0.13:80", "pod-a")
	check(t, answeredBy(c, "172.20.1.2:30080", "pod-a"))
	check(t, p.wantPortals("10.96.0.11:80", "10.96.0.12:80", "10.96.0.13:80", ":30080"))
}

func TestNodePortGetsThePortThatAListenerHad(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	p := c.start()
	held := hold(t, c.Outside, webAddress)
	steady := askSteadily(t, c.Outside, webAddress, 10*time.Millisecond)
	number := redirectedTo.FindStringSubmatch(strings.Join(c.ourRules(), "\n"))[1]
	port, err := strconv.Atoi(number)
	check(t, err)
	c.apply("new", newService("new", "10.96.0.11", nodePort(int32(port))), newSlice("new", []string{podA}))
	eventually(t, func() error { return answeredBy(c, lab.NodeIP+":"+number, "pod-a") })
	for _, a := range steady.stop() {
		if a.who != "pod-a" {
			t.Errorf("a client of the listener that moved: %v", a)
		}
	}
	if who, err := held.ask(); err != nil || who != "pod-a" {
		t.Errorf("the connection by the listener that moved: %q %v", who, err)
	}
	if said := p.said.text(); strings.Contains(said, "level=ERROR") {
		t.Errorf("it said %s", said)
	}
}
