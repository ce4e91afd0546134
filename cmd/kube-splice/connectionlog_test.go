package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// annotated gives a Service one of our annotations.
func annotated(name, value string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Annotations = map[string]string{"kube-splice.io/" + name: value}
	}
}

// want is what a line of the connection log must say besides times and addresses
// of the client.
type want struct {
	service, backend, close string
	attempts                int
	up, down                int64
	failed                  bool
}

func TestConnectionLogHasOneLineForEveryEnd(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.backend("pod-a", func(conn *net.TCPConn) { // answers 7 bytes; resets who asks for it
		request := make([]byte, 5)
		if _, err := io.ReadFull(conn, request); err != nil {
			return
		}
		_, _ = io.WriteString(conn, "answer\n")
		if string(request) != "reset" {
			_, _ = drainConn(conn)
			_ = conn.Close()
			return
		}
		_ = conn.SetLinger(0)
		_ = conn.Close()
	})
	c.silence("pod-c")
	c.publish(podA)
	c.apply("failing", newService("failing", "10.96.0.20"), newSlice("failing", []string{podB})) // where nobody listens
	c.apply("leaving", newService("leaving", "10.96.0.30"))
	c.apply("leaving-slice", newSlice("leaving", []string{podC}))
	p := c.start("--dial-timeout", "10s")
	from := c.client()
	logged := func(n int, client net.Conn, w want) {
		t.Helper()
		all := p.records(n)
		wantRecord(t, all[n-1], w)
		if r := all[n-1]; client != nil && r.Client != client.LocalAddr().String() {
			t.Errorf("logged client %s, want %s", r.Client, client.LocalAddr())
		}
	}

	conn := connect(t, from, webAddress)
	request(t, conn, "hello")
	check(t, conn.Close())
	logged(1, conn, want{"web", podA, "client-closed", 1, 5, 7, false})

	conn = connect(t, from, webAddress)
	request(t, conn, "hello")
	abort(t, conn)
	logged(2, conn, want{"web", podA, "client-reset", 1, 5, 7, true})

	conn = connect(t, from, webAddress)
	request(t, conn, "reset")
	wantReset(t, "client", conn, 0)
	logged(3, conn, want{"web", podA, "backend-reset", 1, 5, 7, true})

	wantNoAnswer(t, from, "10.96.0.20:80")
	logged(4, nil, want{"failing", podB, "dial-failed", 1, 0, 0, true})

	conn = connect(t, from, "10.96.0.30:80")
	c.apply("leaving-slice", newSlice("leaving", nil)) // while it is being dialled
	wantReset(t, "client", conn, 0)
	p.records(5)

	all := p.finish(5)
	if r := all[4]; r.Close != "no-endpoints" || r.Service != "default/leaving:http" || r.Client != conn.LocalAddr().String() {
		t.Errorf("logged %+v, want no-endpoints of leaving", r)
	}
	if said := p.said.text(); strings.Contains(said, "level=ERROR") || strings.Contains(said, "reset") {
		t.Errorf("resets are no errors of the program: %s", said)
	}
}

// request sends text and takes an answer of 7 bytes.
func request(t testing.TB, conn net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(conn, text)
	check(t, err)
	receive(t, conn, 7)
}

func wantRecord(t testing.TB, r record, w want) {
	t.Helper()
	if r.Msg != "connection" || r.Proto != "tcp" || r.Service != "default/"+w.service+":http" ||
		r.Backend != w.backend+":8080" || r.Close != w.close || r.Attempts != w.attempts ||
		r.Up != w.up || r.Down != w.down || (r.Error != "") != w.failed || r.Sticky {
		t.Errorf("logged %+v, want %+v", r, w)
	}
	if age := time.Since(r.Time); age < 0 || age > time.Minute || r.Dial <= 0 || r.Duration < r.Dial {
		t.Errorf("logged %+v: the times cannot be right", r)
	}
}

func TestConnectionLogTellsWhereClientsWantedToGo(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.apply("web",
		newService("web", "10.96.0.10", everyWayIn, sticky(60), withIPv6("fd00:10:96::10")),
		newSlice("web", []string{podA}), newSlice("web", []string{podA6}, ipv6))
	p := c.start()
	asked := []struct {
		from    *lab.Namespace
		address string
	}{
		{c.client(), "10.96.0.10:80"},
		{c.client(), "[fd00:10:96::10]:80"},
		{c.Outside, "10.96.0.50:80"},
		{c.Outside, "10.96.0.60:80"},
		{c.Outside, "172.20.1.2:30080"},
		{c.Outside, "172.20.1.5:30080"},
		{c.Outside, "[fd00:172:20:1::2]:30080"},
		{c.client(), "10.244.1.1:30080"},
		{c.Node, "10.96.0.10:80"},
		{c.Node, "172.20.1.5:30080"},
		{c.Node, "[fd00:10:96::10]:80"},
	}
	for i, a := range asked {
		conn := connect(t, a.from, a.address)
		_, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n")
		check(t, err)
		_, err = drainConn(conn)
		check(t, err)
		check(t, conn.Close())
		r := p.records(i + 1)[i]
		backend := podA + ":8080"
		if strings.HasPrefix(a.address, "[") {
			backend = "[fd00:10:244:1::11]:8080"
		}
		if r.Original != a.address || r.Client != conn.LocalAddr().String() || r.Backend != backend || r.Close != "backend-closed" {
			t.Errorf("logged %+v, want client %v, original %s, backend %s, backend-closed", r, conn.LocalAddr(), a.address, backend)
		}
	}
	p.finish(len(asked))
}

func TestConnectionLogHasFixedKeys(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.apply("web", newService("web", "10.96.0.10", sticky(60)), newSlice("web", []string{podA}))
	p := c.start()
	answers(t, c.client(), webAddress, 2)
	wantNoAnswer(t, c.Outside, fmt.Sprintf("%s:%d", lab.NodeIP, c.portOfListener("default/web:http")))
	all := p.finish(3)
	text, err := os.ReadFile(p.log)
	check(t, err)
	fixed := strings.Fields("time msg proto service client original backend attempts sticky dial_ms duration_ms bytes_up bytes_down close error")
	for line := range strings.Lines(string(text)) {
		want := fixed
		if !strings.Contains(line, `"close":"refused-direct"`) { // a backend was reached
			want = append(slices.Clone(fixed), "client_ip")
		}
		if keys := keysOf(t, line); !slices.Equal(keys, want) {
			t.Errorf("keys %v, want %v", keys, want)
		}
	}
	if all[0].Sticky || !all[1].Sticky {
		t.Errorf("logged %+v, want the second connection, and only that, chosen by affinity", all)
	}
}

// keysOf returns the keys of a JSON object in their order.
func keysOf(t testing.TB, line string) []string {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(line))
	var keys []string
	for i := 0; ; i++ {
		token, err := decoder.Token()
		check(t, err)
		switch token {
		case json.Delim('{'):
			i = -1
		case json.Delim('}'):
			return keys
		default:
			if i%2 == 0 {
				keys = append(keys, token.(string))
			}
		}
	}
}

var textLine = regexp.MustCompile(`^time=\S+ msg=connection proto=tcp service=default/web:http ` +
	`client=10\.244\.1\.50:\d+ original=10\.96\.0\.10:80 backend=10\.244\.1\.11:8080 attempts=1 sticky=false ` +
	`dial_ms=[\d.]+ duration_ms=[\d.]+ bytes_up=4 bytes_down=4 close=client-closed error="" client_ip=hidden\n$`)

func TestConnectionLogAsText(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.backend("pod-a", echo)
	c.publish(podA)
	p := c.start("--connection-log", "text")
	conn := connect(t, c.client(), webAddress)
	exchange(t, conn, "ping")
	check(t, conn.Close())
	if status := p.kill(syscall.SIGTERM); status != exitOK {
		t.Errorf("exit status %d", status)
	}
	text, err := os.ReadFile(p.log)
	check(t, err)
	if !textLine.Match(text) {
		t.Errorf("logged %q, want one line like %s", text, textLine)
	}
}

func TestServiceMayStayOutOfTheConnectionLog(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.publish(podA)
	c.apply("private", newService("private", "10.96.0.20", annotated("connection-log", "off")), newSlice("private", []string{podA}))
	p := c.start()
	answers(t, c.client(), "10.96.0.20:80", 3)
	answers(t, c.client(), webAddress, 1)
	if r := p.finish(1)[0]; r.Service != "default/web:http" {
		t.Errorf("logged %+v, want only the other Service's connection", r)
	}
}
