package lab

import (
	"fmt"
	"io"
	"net"
	"strconv"
)

// datagramServer is one UDP server in a pod.
type datagramServer struct {
	pod  *Pod
	conn net.PacketConn
	done chan struct{}
}

// ServeDatagrams starts a UDP server in the pod, on every address of both families. It
// answers each datagram as Serve's answers a request. Closing it waits for its end.
func (p *Pod) ServeDatagrams(port int) (io.Closer, error) {
	conn, err := p.ListenPacket("udp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("serve datagrams in %s: %w", p.Name, err)
	}
	s := &datagramServer{pod: p, conn: conn, done: make(chan struct{})}
	go s.serve()
	return s, nil
}

// serve is the server's goroutine.
func (s *datagramServer) serve() {
	defer close(s.done)
	for {
		_, peer, err := s.conn.ReadFrom(nil) // what it holds does not matter
		if err != nil {
			return
		}
		_, _ = s.conn.WriteTo(fmt.Appendf(nil, "%s %s\n", s.pod.Name, peer), peer)
	}
}

// Close ends the server.
func (s *datagramServer) Close() error {
	err := s.conn.Close()
	<-s.done
	return err
}
