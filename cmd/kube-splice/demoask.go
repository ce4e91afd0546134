package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

// askOnce sends one HTTP request on a connection of its own and returns the name
// of the pod that answered.
func askOnce(ctx context.Context, from *lab.Namespace, address string) (string, error) {
	return dialogue(ctx, from, "tcp", address, func(conn net.Conn) (string, error) {
		if _, err := fmt.Fprintf(conn, "GET / HTTP/1.0\r\nHost: %s\r\n\r\n", address); err != nil {
			return "", err
		}
		answer, err := io.ReadAll(conn)
		_, body, _ := strings.Cut(string(answer), "\r\n\r\n")
		return body, err
	})
}

// askDatagram does the same with one datagram.
func askDatagram(ctx context.Context, from *lab.Namespace, address string) (string, error) {
	return dialogue(ctx, from, "udp", address, func(conn net.Conn) (string, error) {
		if _, err := io.WriteString(conn, "who\n"); err != nil {
			return "", err
		}
		answer := make([]byte, 100)
		n, err := conn.Read(answer)
		return string(answer[:n]), err
	})
}

// dialogue asks at an address within five seconds. The first word of the answer is the
// name of the pod.
func dialogue(ctx context.Context, from *lab.Namespace, network, address string, ask func(net.Conn) (string, error)) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := from.DialContext(ctx, network, address)
	if err != nil {
		return "", err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	defer func() { _ = conn.Close() }()
	answer, err := ask(conn)
	who, _, _ := strings.Cut(answer, " ")
	return who, err
}
