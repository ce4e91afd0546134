// Command bench-udp measures what relaying UDP costs: kube-splice and nginx's stream
// module, side by side between the same two ends, first the datagram engine alone over
// loopback, then the whole program between pods (pods.go). It prints round trips per
// second of the proxy's processor time, in rounds that take turns, so that a busy
// machine is as unfair to the one as to the other.
//
// It needs bin/kube-splice, nginx with libnginx-mod-stream, iptables, ip and gcc.
package main

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"

	"time"

	"github.com/kube-splice/kube-splice/lab"
	"github.com/kube-splice/kube-splice/proxy/datagram"
)

const (
	echoPort, nginxPort, ourPort = 7000, 7002, 7003

	idle      = 5 * time.Second
	mostFlows = 9_000 // at once; each takes a descriptor, and kube-splice keeps half of them for TCP
)

func main() {
	rounds := flag.Int("rounds", 3, "how often each is measured")
	seconds := flag.Int("seconds", 2, "how long each is measured")
	rows := flag.String("rows", "", "regular expression: measure only the rows it matches")
	flag.Parse()
	wanted, err := regexp.Compile(*rows)
	switch {
	case err != nil:
	case flag.Arg(0) == "proxy":
		err = serve()
	default:
		if err = lab.Isolate(); err == nil {
			err = bench(&run{rounds: *rounds, seconds: *seconds, wanted: wanted})
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-udp:", err)
		os.Exit(1)
	}
}

// flow is a Token that wants to know nothing.
type flow struct{ backend netip.AddrPort }

func (f *flow) Prepare(int) error { return nil }

func (f *flow) Failed(error) netip.AddrPort { return f.backend }
func (*flow) Done(datagram.Result)          {}

// serve is the proxy of ours: one listener, one endpoint.
func serve() error {
	at := func(port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
	}
	loop, err := datagram.New(datagram.Config{})
	if err != nil {
		return err
	}
	listener, err := loop.Listen(at(ourPort), func(datagram.Arrival) (datagram.Route, error) {
		return datagram.Route{Backend: at(echoPort), Idle: idle, Token: &flow{at(echoPort)}}, nil
	})
	if err == nil {
		err = listener.Unpark()
	}
	if err != nil {
		return err
	}
	select {}
}

func bench(b *run) (err error) {
	runtime.LockOSThread() // what is started ends with the thread that started it
	if b.dir, err = os.MkdirTemp("", "bench-udp"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if out, err := exec.Command("gcc", "-O2", "-o", filepath.Join(b.dir, "udp"), "ends/udp.c", "-lpthread").CombinedOutput(); err != nil {
		return fmt.Errorf("compile ends/udp.c: %w: %s", err, out)
	}
	defer b.stop()
	if err := b.overLoopback(); err != nil {
		return err
	}
	return b.betweenPods()
}

// overLoopback compares the engine alone, with one listener and one endpoint.
func (b *run) overLoopback() error {
	// Every flow and every question takes a port.
	if err := os.WriteFile(portRange, []byte(ports), 0); err != nil {
		return err
	}
	at := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
	if _, err := b.start(b.program("echo", at(echoPort))); err != nil {
		return err
	}
	nginx, err := b.startNginx("", at(nginxPort), at(echoPort))
	if err != nil {
		return err
	}
	ours, err := b.start(exec.Command("/proc/self/exe", "proxy"))
	if err != nil {
		return err
	}
	b.proxies = []proxy{{"nginx", at(nginxPort), nginx}, {"kube-splice", at(ourPort), ours}}
	if err := b.ready(); err != nil {
		return err
	}
	if err := b.memory(5000); err != nil { // first: later, freed memory would be used again
		return err
	}
	fmt.Printf("%-40s %-12s %10s %22s %8s\n", "", "", "per CPU-s", "of rounds", "lost")
	return b.measure(loads)
}

const portRange, ports = "/proc/sys/net/ipv4/ip_local_port_range", "10000 65000"

// startNginx starts nginx in a network namespace ("": this one).
func (b *run) startNginx(namespace, listen, backend string) (*exec.Cmd, error) {
	path := filepath.Join(b.dir, "nginx"+namespace)
	conf := fmt.Sprintf(nginxConf, path, path, listen, backend, int(idle.Seconds()))
	if err := os.WriteFile(path, []byte(conf), 0o644); err != nil {
		return nil, err
	}
	return b.start(in(namespace, exec.Command("nginx", "-c", path)))
}

const nginxConf = `daemon off; worker_processes 1; pid %s.pid; error_log %s.errors;
load_module /usr/lib/nginx/modules/ngx_stream_module.so;
worker_rlimit_nofile 20000;
events { worker_connections 40000; }
stream { server { listen %s udp rcvbuf=8m sndbuf=8m; proxy_pass %s; proxy_timeout %ds; } }
`

// load is what one row measures.
type load struct {
	what string
	args []any // of ends/udp.c; SECONDS is put in
}

// loads are the rows of the table.
var loads = func() (all []load) {
	for _, pace := range []struct {
		name string
		rate int
	}{{"20,000/s", 20_000}, {"flooded", 0}} {
		for _, flows := range []int{1, 1000} {
			for _, size := range []int{64, 1200} {
				all = append(all, load{fmt.Sprintf("%d flows, %d bytes, %s", flows, size, pace.name), []any{"load", pace.rate, flows, size}})
			}
		}
	}
	return append(all,
		load{"new flows, one by one", []any{"new", 2000, 1, mostFlows}},
		load{"new flows, 8 at a time", []any{"new", 0, 8, mostFlows}})
}()
