package lab

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
)

// server is one web server in a pod.
type server struct {
	pod  *Pod
	http http.Server
	done chan struct{}
}

// Serve starts a web server in the pod, on every address of both families. It
// answers each request with one line: the pod's name and the peer it saw, as in
// "pod-a 10.244.1.1:5678". Closing it resets what is open and waits for its end.
func (p *Pod) Serve(port int) (io.Closer, error) {
	l, err := p.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("serve in %s: %w", p.Name, err)
	}
	s := &server{pod: p, done: make(chan struct{})}
	s.http.Handler = http.HandlerFunc(s.answer)
	go s.serve(l)
	return s, nil
}

func (s *server) serve(l net.Listener) {
	defer close(s.done)
	_ = s.http.Serve(l) // ends with Close, or with its namespace
}

func (s *server) answer(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%s %s\n", s.pod.Name, r.RemoteAddr)
}

// Close ends the server and its connections.
func (s *server) Close() error {
	err := s.http.Close()
	<-s.done
	return err
}
