package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	armon "github.com/armon/go-proxyproto"
	"github.com/pires/go-proxyproto"

	"github.com/kube-splice/kube-splice/lab"
)

// runPeer runs a server in a machine of the lab until the test ends, and waits until it
// listens at the address.
func runPeer(t testing.TB, in *lab.Namespace, address string, command ...string) {
	t.Helper()
	var said bytes.Buffer
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	check(t, in.Start(cmd))
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s said: %s", command[0], said.String())
		}
	})
	eventually(t, func() error {
		conn, err := in.Dial("tcp", address, time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
}

// configured writes a program's configuration and returns its path.
func configured(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config")
	check(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// nginx runs nginx with stream and http parts.
func nginx(t testing.TB, in *lab.Namespace, address, parts string) {
	t.Helper()
	dir := t.TempDir()
	config := configured(t, "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\n"+
		"daemon off; master_process off; pid "+dir+"/pid; error_log stderr;\nevents {}\n"+parts)
	runPeer(t, in, address, "nginx", "-p", dir, "-e", "stderr", "-c", config)
}

func haproxy(t testing.TB, in *lab.Namespace, address, parts string) {
	t.Helper()
	config := configured(t, "defaults\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n"+parts)
	runPeer(t, in, address, "haproxy", "-db", "-f", config)
}

// What each server says of the connection, before it is asked or in answer to a request:
// client address and port, address and port asked for, and the connection's name, with a "-".
const (
	nginxSays   = `"$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_addr $proxy_protocol_server_port -"`
	haproxySays = `"%[src] %[src_port] %[dst] %[dst_port] %[fc_pp_unique_id]-"`
)

// said takes what a server says out of its answer.
var said = regexp.MustCompile(`[0-9a-f.:]+ \d+ [0-9a-f.:]+ \d+ \S+`)

// tells serves connections of a listener whose Conns know who the client is.
func tells(t *testing.T, ln net.Listener) {
	t.Helper()
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				client, server := conn.RemoteAddr().(*net.TCPAddr), conn.LocalAddr().(*net.TCPAddr)
				id := ""
				if c, is := conn.(*proxyproto.Conn); is {
					tlvs, _ := c.ProxyHeader().TLVs()
					for _, tlv := range tlvs {
						if tlv.Type == proxyproto.PP2_TYPE_UNIQUE_ID {
							id = string(tlv.Value)
						}
					}
				}
				fmt.Fprintf(conn, "%v %d %v %d %s-\n", client.IP, client.Port, server.IP, server.Port, id)
			})
		}
	})
	t.Cleanup(func() { _ = ln.Close(); serving.Wait() })
}

// readers are servers in a pod that tell what a header has told them, by their port.
func (c *cluster) readers(pod string) map[string]int {
	c.t.Helper()
	in := c.Pod(pod).Namespace
	nginx(c.t, in, "127.0.0.1:9001", `
		stream { server { listen [::]:9001 proxy_protocol ipv6only=off; return `+nginxSays+`; } }
		http { access_log off; server { listen [::]:9002 proxy_protocol ipv6only=off; return 200 `+nginxSays+`; } }`)
	haproxy(c.t, in, "127.0.0.1:9003", "frontend reader\n mode http\n bind :::9003 v4v6 accept-proxy\n"+
		" http-request return status 200 content-type text/plain lf-string "+haproxySays+"\n")
	return map[string]int{"nginx stream": 9001, "nginx http": 9002, "HAProxy": 9003}
}

func TestServersReadTheHeadersThatAreSent(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	readers := c.readers("pod-a")
	for port, wrap := range map[int]func(net.Listener) net.Listener{
		9004: func(ln net.Listener) net.Listener { return &proxyproto.Listener{Listener: ln} },
		9005: func(ln net.Listener) net.Listener { return &armon.Listener{Listener: ln} }, // of version 1
	} {
		ln, err := c.Pod("pod-a").Listen("tcp", fmt.Sprintf("[::]:%d", port))
		check(t, err)
		tells(t, wrap(ln))
	}
	readers["go-proxyproto of pires"], readers["go-proxyproto of armon"] = 9004, 9005
	p := c.startReaders(readers)
	n := 0
	for name, at := range readers {
		for version := range 2 {
			if version == 1 && at == 9005 {
				continue
			}
			for _, address := range []string{readerAddress(at, version), readerAddress6(at, version)} {
				conn := connect(t, c.client(), address)
				client := conn.LocalAddr().String()
				got := c.askReader(conn)
				n++
				r := p.records(n)[n-1]
				id := ""
				if at == 9003 || at == 9004 { // the others do not tell it
					id = r.UniqueID
				}
				if want := saidAs(client, address) + " " + id + "-"; got != want {
					t.Errorf("%s, version %d: is told %q, want %q", name, version+1, got, want)
				}
				if (r.UniqueID != "") != (version == 1) || r.Peer != "" || r.Client != client {
					t.Errorf("logged %+v, want a unique ID with version 2", r)
				}
			}
		}
	}
}

// saidAs returns two addresses as the servers say them.
func saidAs(client, server string) string {
	var all []string
	for _, address := range []string{client, server} {
		host, port, _ := net.SplitHostPort(address)
		all = append(all, host, port)
	}
	return strings.Join(all, " ")
}

func readerAddress(port, version int) string {
	return fmt.Sprintf("10.96.1.%d:80", port%1000*10+version)
}
func readerAddress6(port, version int) string {
	return fmt.Sprintf("[fd00:10:96::1%d%d]:80", port%1000, version)
}

// startReaders starts the program with a Service for each reader and version.
func (c *cluster) startReaders(readers map[string]int) *program {
	c.t.Helper()
	for _, port := range readers {
		for version := range 2 {
			name := fmt.Sprintf("reader-%d-v%d", port, version+1)
			ip, _, _ := net.SplitHostPort(readerAddress(port, version))
			ip6, _, _ := net.SplitHostPort(readerAddress6(port, version))
			c.apply(name, newService(name, ip, withIPv6(ip6), annotations("send-proxy-protocol", fmt.Sprintf("v%d", version+1))),
				newSlice(name, []string{podA}, endpointPort(uint16(port))), newSlice(name, []string{podA6}, ipv6, endpointPort(uint16(port))))
		}
	}
	return c.start()
}

// askReader sends a request, which some readers do not wait for, and returns what it is
// told.
func (c *cluster) askReader(conn net.Conn) string {
	c.t.Helper()
	_, _ = io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n")
	answer, err := io.ReadAll(struct{ io.Reader }{conn})
	if len(answer) == 0 {
		c.t.Errorf("a reader answers nothing: %v", err)
	}
	_ = conn.Close()
	return said.FindString(string(answer))
}

// Load balancers outside of the cluster that tell us who their clients are.
func TestHeadersOfLoadBalancersAreRead(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.apply("web", newService("web", "10.96.0.10", wantsHeaders), newSlice("web", []string{podA}))
	p := c.start(trustOutside)
	nginx(t, c.Outside, "127.0.0.1:9010", "stream { server { listen 9010; proxy_protocol on; proxy_pass 10.96.0.10:80; } }")
	haproxy(t, c.Outside, "127.0.0.1:9011", `
frontend one
 bind :9011
 default_backend v1
frontend two
 bind :9012
 unique-id-format my-%pid-%rt
 default_backend v2
backend v1
 server s 10.96.0.10:80 send-proxy
backend v2
 server s 10.96.0.10:80 send-proxy-v2 proxy-v2-options crc32c,unique-id check inter 100ms
`)
	for _, at := range []string{"172.20.9.2:9010", "172.20.9.2:9011", "172.20.9.2:9012"} {
		conn := connect(t, c.client(), at)
		if who, err := newHeld(conn).ask(); who != "pod-a" || err != nil {
			t.Errorf("%s is answered by %q (%v)", at, who, err)
		}
		check(t, conn.Close())
		eventually(t, func() error {
			for _, r := range p.records(1) {
				if r.Client == conn.LocalAddr().String() && strings.HasPrefix(r.Peer, "172.20.9.2:") && (r.UniqueID != "") == strings.HasSuffix(at, "12") {
					return nil
				}
			}
			return fmt.Errorf("%s: no connection of %v is logged in %+v", at, conn.LocalAddr(), p.records(1))
		})
	}
	// HAProxy's checks are connections of its own.
	eventually(t, func() error {
		for _, r := range p.records(1) {
			if strings.HasPrefix(r.Client, "172.20.9.2:") && r.Peer == "" && r.Attempts == 1 && r.Up == 0 {
				return nil
			}
		}
		return fmt.Errorf("no check is logged as a connection of HAProxy's own")
	})
	for _, r := range p.records(4) {
		// The tests' own looks whether the load balancers listen pass no byte.
		if r.Close == "bad-header" {
			t.Errorf("logged %+v", r)
		}
	}
}

// A second kube-splice believes the first, which believes the load balancer.
func TestChainOfTwoNodesKeepsTheFirstClient(t *testing.T) {
	t.Parallel()
	c := newTwoNodes(t)
	other := *c.Lab
	other.Node = other.Node2
	second := &cluster{Lab: &other, t: t, manifests: t.TempDir()}

	ln, err := c.Pod("pod-d").Listen("tcp", ":9004")
	check(t, err)
	tells(t, &proxyproto.Listener{Listener: ln})
	sends := annotations("send-proxy-protocol", "v2")
	second.apply("web", newService("web", "10.96.0.20", nodePort(30080), wantsHeaders, sends), newSlice("web", []string{"10.244.2.11"}, endpointPort(9004)))
	c.apply("web", newService("web", "10.96.0.10", wantsHeaders, sends), newSlice("web", []string{lab.Node2IP}, endpointPort(30080)))
	there := second.start("--proxy-protocol-trusted-cidrs=" + lab.NodeIP + "/32")
	here := c.start(trustOutside)
	for i, first := range []struct {
		header         string
		client, server string // empty: who connects, and where
	}{
		{"", "", webAddress}, // a pod
		{headerOf(t, 1, farClient, farServer, 0), farClient, farServer},
		{headerOf(t, 2, farClient6, farServer6, 0), farClient6, farServer6},
	} {
		from := c.Outside
		if first.header == "" {
			from = c.client()
		}
		conn := connect(t, from, webAddress)
		_, err := io.WriteString(conn, first.header)
		check(t, err)
		client := first.client
		if client == "" {
			client = conn.LocalAddr().String()
		}
		got := c.askReader(conn)
		a, b := here.records(i + 1)[i], there.records(i + 1)[i]
		if want := saidAs(client, first.server) + " " + a.UniqueID + "-"; got != want {
			t.Errorf("the pod is told %q, want %q", got, want)
		}
		if a.Client != client || b.Client != client || a.UniqueID == "" || a.UniqueID != b.UniqueID || !strings.HasPrefix(b.Peer, lab.NodeIP+":") {
			t.Errorf("logged %+v, then %+v, want the client %s and one name in both", a, b, client)
		}
	}
}
