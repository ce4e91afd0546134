package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// Anybody may send to the socket of a flow, if only they guess its port.
func TestUDPAnswersOfAStrangerDoNotReachTheClient(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	backend := c.receiving("pod-a")
	c.publishUDP(podA)
	c.start()
	client, first := newFlow(c, backend, udpAddress)
	flow := first.from.(*net.UDPAddr)
	stranger, err := c.Pod("pod-b").ListenPacket("udp", ":8080")
	check(t, err)
	defer stranger.Close()
	neighbour, err := c.Pod("pod-a").ListenPacket("udp", ":8081")
	check(t, err)
	defer neighbour.Close()
	for _, conn := range []net.PacketConn{stranger, neighbour} {
		_, err := conn.WriteTo([]byte("forged"), flow)
		check(t, err)
	}
	first.answer(t, "true")
	wantHeard(t, client, "true")
	if text, err := hear(client, 200*time.Millisecond); err == nil {
		t.Errorf("the client was sent %q too", text)
	}
}

// It would hold a descriptor for ever.
func TestClientThatSendsNothingIsCutOffByTheHealthServer(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	c.start()
	conn, err := c.Outside.Dial("tcp", "172.20.1.2:10256", patience)
	check(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: ")
	check(t, err)
	check(t, conn.SetReadDeadline(time.Now().Add(3*patience)))
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the server waits for the rest of the request")
	}
}

func TestHostileManifestsStopOnlyThemselves(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	var bomb strings.Builder // 10^12 strings, if all were written out
	bomb.WriteString("kind: Service\napiVersion: v1\nmetadata: {name: bomb}\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := range 11 {
		fmt.Fprintf(&bomb, "a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", "))
	}
	hostile := map[string]string{
		"bomb": bomb.String(),
		"deep": strings.Repeat("[", 1<<20),
		"name": "kind: Service\napiVersion: v1\nmetadata: {name: \"a\\\"\\nCOMMIT\\n*filter\\n-F INPUT\"}\nspec: {clusterIP: 10.96.0.66, ports: [{port: 80}]}",
		"port": "kind: Service\napiVersion: v1\nmetadata: {name: port}\nspec: {clusterIP: 10.96.0.67, ports: [{port: 65616}]}",
	}
	for name, text := range hostile {
		check(t, os.WriteFile(c.manifestPath(name), []byte(text), 0o600))
	}
	p := c.start()
	wantAnswer(t, c.Outside, webAddress, "pod-a")
	for name := range hostile {
		eventually(t, func() error { return wantSaid(p, "/"+name+".yaml", 1) })
	}
	for _, rule := range c.ourRules() {
		if strings.Contains(rule, "COMMIT") || strings.Contains(rule, "10.96.0.66/") || strings.Contains(rule, "10.96.0.67/") {
			t.Errorf("a rule was written: %s", rule)
		}
	}
	c.apply("web", newService("web", "10.96.0.11"), newSlice("web", []string{podA}))
	soon(t, c.Outside, "10.96.0.11:80", "pod-a")
}
