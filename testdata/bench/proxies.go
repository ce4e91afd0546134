package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const backendPort, proxyPort = 7000, 7001

// proxy is one of those compared.
type proxy struct {
	name, title string
	ours        bool
	descriptors uint64 // for a connection, at the most
	// command writes the proxy's configuration and returns what starts it: listening at
	// proxyPort of every address, for a backend. It is nil if clients go there themselves.
	command func(b *run, backend string, logged bool) (*exec.Cmd, error)
}

var proxies = []proxy{
	{name: "direct", title: "no proxy", descriptors: 1},
	{name: "loop", title: "kube-splice, loop", ours: true, descriptors: 2, command: kubeSplice("loop")},
	{name: "copy", title: "kube-splice, copy", ours: true, descriptors: 6, command: kubeSplice("copy")},
	{name: "haproxy", title: "HAProxy", descriptors: 2, command: haproxy("splice-auto")},
	{name: "haproxy-splice", title: "HAProxy, always splicing", descriptors: 2, command: haproxy("splice-request", "splice-response")},
	{name: "nginx", title: "nginx", descriptors: 2, command: nginx},
}

func proxyNames() (names []string) {
	for _, p := range proxies {
		names = append(names, p.name)
	}
	return names
}

const manifest = `apiVersion: v1
kind: Service
metadata: {name: bench}
spec:
  clusterIP: 192.0.2.10
  ports: [{port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: bench-1, labels: {kubernetes.io/service-name: bench}}
addressType: IPv4
ports: [{port: %d}]
endpoints: [{addresses: [%s]}]
`

// kubeSplice returns the command of kube-splice with one of its relays.
func kubeSplice(relay string) func(*run, string, bool) (*exec.Cmd, error) {
	return func(b *run, backend string, logged bool) (*exec.Cmd, error) {
		file := filepath.Join(b.dir, "manifest.yaml")
		args := []string{"--relay=" + relay, "--redirect=none", "--hostname-override=bench", "--manifests=" + file,
			fmt.Sprintf("--proxy-port-range=%d-%d", proxyPort, proxyPort)}
		if logged {
			args = append(args, "--connection-log=json", "--connection-log-file="+b.connectionLog())
		}
		return command(b.proxyCores, b.kubeSplice, args...), os.WriteFile(file, fmt.Appendf(nil, manifest, backendPort, backend), 0o644)
	}
}

func (b *run) connectionLog() string { return filepath.Join(b.dir, "connections") }

// HAProxy counts on a pipe in each direction of every fourth connection unless it is
// told; that is more than the limit on open files allows here.
const haproxyConf = `global
  nbthread %d
  maxconn 8500
  maxpipes 64
defaults
  mode tcp
%s  option tcp-smart-accept
  option tcp-smart-connect
  timeout connect 5s
  timeout client 10m
  timeout server 10m
listen bench
  bind 0.0.0.0:%d
  server backend %s:%d
`

// haproxy returns the command of HAProxy with some options on splicing.
func haproxy(splicing ...string) func(*run, string, bool) (*exec.Cmd, error) {
	return func(b *run, backend string, _ bool) (*exec.Cmd, error) {
		chosen := ""
		for _, option := range splicing {
			chosen += "  option " + option + "\n"
		}
		file := filepath.Join(b.dir, "haproxy.cfg")
		conf := fmt.Appendf(nil, haproxyConf, b.proxyCoreCount(), chosen, proxyPort, backend, backendPort)
		return command(b.proxyCores, "haproxy", "-db", "-q", "-f", file), os.WriteFile(file, conf, 0o644)
	}
}

// Of the sizes of nginx's buffer, 16k to 256k, this one cost least under every load.
const nginxConf = `daemon off; user root; worker_processes %d; pid %s/pid; error_log %s/errors;
load_module /usr/lib/nginx/modules/ngx_stream_module.so;
worker_rlimit_nofile 18000;
events { worker_connections 17500; }
stream {
  tcp_nodelay on;
  proxy_buffer_size 256k;
  server { listen 0.0.0.0:%d reuseport; proxy_pass %s:%d; }
}
`

func nginx(b *run, backend string, _ bool) (*exec.Cmd, error) {
	file := filepath.Join(b.dir, "nginx.conf")
	conf := fmt.Appendf(nil, nginxConf, b.proxyCoreCount(), b.dir, b.dir, proxyPort, backend, backendPort)
	return command(b.proxyCores, "nginx", "-c", file), os.WriteFile(file, conf, 0o644)
}

func (b *run) proxyCoreCount() int { return strings.Count(b.proxyCores, ",") + 1 }

// place is where clients ask: in a network of 65,536 addresses that nobody used before, so
// that no port is still taken by a connection that is over.
type place struct {
	proxy *exec.Cmd // nil: there is none
	net   string
	port  int
	said  string // the file of what the proxy says
}

// start starts a proxy and waits until it serves.
func (b *run) start(p proxy, logged bool) (at place, err error) {
	b.started = b.started%250 + 1
	at = place{net: fmt.Sprintf("10.%d.0.0", b.started), port: backendPort, said: filepath.Join(b.dir, "said")}
	said, err := os.Create(at.said)
	if err != nil {
		return at, err
	}
	defer said.Close()
	if p.command != nil {
		at.port = proxyPort
		if at.proxy, err = p.command(b, fmt.Sprintf("10.%d.1.1", b.started), logged); err != nil {
			return at, err
		}
		at.proxy.Stderr = said
		if err := at.proxy.Start(); err != nil {
			return at, err
		}
	}
	for range 100 {
		one := b.client(at, load{mode: "new", connections: 1}, 0)
		one.Stderr = nil
		if one.Run() == nil {
			return at, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return at, at.failed(errors.New("it does not serve"))
}

// failed stops the proxy and adds what it said.
func (at place) failed(err error) error {
	at.stop()
	text, _ := os.ReadFile(at.said)
	return fmt.Errorf("%w\n%s", err, text)
}

// stop may be called again.
func (at place) stop() {
	if at.proxy != nil && at.proxy.ProcessState == nil {
		end(at.proxy)
	}
}
