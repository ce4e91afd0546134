package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

// serveAs runs a web server in a namespace, on one port of every address, until the
// test ends. Its answers begin with what name makes of the address asked.
func (c *cluster) serveAs(in *lab.Namespace, port int, name func(asked netip.AddrPort) string) {
	c.t.Helper()
	l, err := in.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
	check(c.t, err)
	answer := func(w http.ResponseWriter, r *http.Request) {
		asked := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr).AddrPort()
		fmt.Fprintf(w, "%s %s\n", name(netip.AddrPortFrom(asked.Addr().Unmap(), asked.Port())), r.RemoteAddr)
	}
	server := &http.Server{Handler: http.HandlerFunc(answer)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l) // ends with Close
	}()
	c.t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
}

// named answers by one name whatever was asked.
func named(name string) func(netip.AddrPort) string {
	return func(netip.AddrPort) string { return name }
}

// held is a connection that stays open: each request on it is answered by the pod
// it was led to when it was made.
type held struct {
	net.Conn
	answers *bufio.Reader
}

// hold opens a connection that lives until the test ends, or until Close.
func hold(t testing.TB, from *lab.Namespace, address string) *held {
	t.Helper()
	conn, err := from.Dial("tcp", address, 6*time.Second)
	check(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return newHeld(conn)
}

func newHeld(conn net.Conn) *held { return &held{conn, bufio.NewReader(conn)} }

// ask sends one request and returns the name of the pod that answered.
func (h *held) ask() (string, error) {
	if err := h.SetDeadline(time.Now().Add(6 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(h, "GET / HTTP/1.1\r\nHost: pod\r\n\r\n"); err != nil {
		return "", err
	}
	response, err := http.ReadResponse(h.answers, nil)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(response.Body)
	who, _, _ := strings.Cut(string(body), " ")
	return who, err
}

// wantAnswer demands that a pod answers, and that one.
func wantAnswer(t testing.TB, from *lab.Namespace, address, pod string) {
	t.Helper()
	if who, err := ask(from, address); who != pod {
		t.Errorf("from %s, %s is answered by %q (%v), want %s", from.Name, address, who, err, pod)
	}
}

// soon waits for a change of the manifests to be live, as it must be in a second.
func soon(t testing.TB, from *lab.Namespace, address, pod string) {
	t.Helper()
	within(t, time.Second, func() error {
		conn, err := from.Dial("tcp", address, 100*time.Millisecond)
		if err != nil {
			return err
		}
		defer conn.Close()
		who, err := newHeld(conn).ask()
		if err == nil && who != pod {
			err = fmt.Errorf("%s is answered by %q, want %s", address, who, pod)
		}
		return err
	})
}

// unserved returns an error if anybody answers at an address.
func unserved(from *lab.Namespace, address string) error {
	conn, err := from.Dial("tcp", address, 200*time.Millisecond)
	if err != nil {
		return nil
	}
	_ = conn.Close()
	return fmt.Errorf("%s still takes connections", address)
}
