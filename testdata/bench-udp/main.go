// Command bench-udp measures what relaying UDP costs: kube-splice's datagram engine and
// nginx's stream module, side by side between the same two ends, in a network of
// their own. It prints round trips per second of the proxy's processor time, in rounds
// that take turns, so that a busy machine is as unfair to the one as to the other.
//
// It needs nginx with libnginx-mod-stream, and gcc.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kube-splice/kube-splice/lab"
	"github.com/kube-splice/kube-splice/proxy/datagram"
)

const (
	echoPort, nginxPort, ourPort = 7000, 7002, 7003
	idle                         = 10 * time.Second
)

func main() {
	rounds := flag.Int("rounds", 3, "how often each is measured")
	seconds := flag.Int("seconds", 3, "how long each is measured")
	flag.Parse()
	err := error(nil)
	if flag.Arg(0) == "proxy" {
		err = serve()
	} else if err = lab.Isolate(); err == nil {
		err = bench(*rounds, *seconds)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-udp:", err)
		os.Exit(1)
	}
}

// flow is a Token that wants to know nothing.
type flow struct{ backend netip.AddrPort }

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

// proxy is one of those compared.
type proxy struct {
	name string
	port int
	cmd  *exec.Cmd
}

func bench(rounds, seconds int) error {
	runtime.LockOSThread() // what is started ends with the thread that started it
	dir, err := os.MkdirTemp("", "bench-udp")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if out, err := exec.Command("gcc", "-O2", "-o", filepath.Join(dir, "udp"), "ends/udp.c", "-lpthread").CombinedOutput(); err != nil {
		return fmt.Errorf("compile ends/udp.c: %w: %s", err, out)
	}
	conf := fmt.Sprintf(nginxConf, dir, dir, nginxPort, echoPort, int(idle.Seconds()))
	err = errors.Join(os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(conf), 0o644),
		// Every flow and every question takes a port.
		os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("10000 65000"), 0))
	if err != nil {
		return err
	}
	b := &run{dir: dir, rounds: rounds, seconds: seconds}
	defer b.stop()
	b.start(b.program("echo", echoPort))
	nginx := b.start(exec.Command("nginx", "-c", filepath.Join(dir, "nginx.conf")))
	ours := b.start(exec.Command("/proc/self/exe", "proxy"))
	time.Sleep(time.Second)
	b.proxies = []proxy{{"nginx", nginxPort, nginx}, {"kube-splice", ourPort, ours}}
	return b.measure()
}

const nginxConf = `daemon off; worker_processes 1; pid %s/pid; error_log %s/errors;
load_module /usr/lib/nginx/modules/ngx_stream_module.so;
worker_rlimit_nofile 20000;
events { worker_connections 20000; }
stream { server { listen 127.0.0.1:%d udp rcvbuf=8m sndbuf=8m; proxy_pass 127.0.0.1:%d; proxy_timeout %ds; } }
`

// run is one run of the benchmark.
type run struct {
	dir             string
	rounds, seconds int
	proxies         []proxy
	started         []*exec.Cmd
}

func (b *run) program(args ...any) *exec.Cmd {
	var text []string
	for _, a := range args {
		text = append(text, fmt.Sprint(a))
	}
	return exec.Command(filepath.Join(b.dir, "udp"), text...)
}

func (b *run) start(cmd *exec.Cmd) *exec.Cmd {
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "bench-udp:", err)
		os.Exit(1)
	}
	b.started = append(b.started, cmd)
	return cmd
}

func (b *run) stop() {
	for _, cmd := range b.started {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	}
}

// measure prints a line for each load and proxy.
func (b *run) measure() error {
	if err := b.memory(5000); err != nil { // first: later, freed memory would be used again
		return err
	}
	fmt.Printf("%-32s %-12s %10s %22s %8s\n", "", "", "per CPU-s", "of rounds", "lost")
	for _, rate := range []int{20_000, 0} {
		for _, flows := range []int{1, 1000} {
			for _, size := range []int{64, 1200} {
				what := fmt.Sprintf("%d flows, %d bytes, 20,000/s", flows, size)
				if rate == 0 {
					what = fmt.Sprintf("%d flows, %d bytes, flooded", flows, size)
				}
				if err := b.compare(what, "load", rate, flows, size); err != nil {
					return err
				}
			}
		}
	}
	if err := b.compare("new flows, one by one", "new", 2000, 1); err != nil {
		return err
	}
	return b.compare("new flows, 8 at a time", "new", 0, 8)
}

// compare measures one load at every proxy, in turns.
func (b *run) compare(what, mode string, args ...any) error {
	rates, lost := make([][]float64, len(b.proxies)), make([]float64, len(b.proxies))
	for range b.rounds {
		for i, p := range b.proxies {
			before := cpu(p.cmd.Process.Pid)
			out, err := b.program(append([]any{mode, p.port, b.seconds}, args...)...).Output()
			if err != nil {
				return err
			}
			used := cpu(p.cmd.Process.Pid) - before
			var sent, answered, took float64
			if _, err := fmt.Sscan(string(out), &sent, &answered, &took); err != nil {
				return err
			}
			rates[i] = append(rates[i], answered/used.Seconds())
			lost[i] += (1 - answered/sent) / float64(b.rounds)
			if mode == "new" {
				time.Sleep(idle + time.Second) // until its flows are gone
			}
		}
	}
	for i, p := range b.proxies {
		slices.Sort(rates[i])
		fmt.Printf("%-32s %-12s %10.0f %10.0f to %8.0f %7.1f%%\n", what, p.name, rates[i][len(rates[i])/2], rates[i][0], rates[i][len(rates[i])-1], 100*lost[i])
	}
	return nil
}

// memory prints the resident memory of an idle flow.
func (b *run) memory(flows int) error {
	for _, p := range b.proxies {
		if err := b.program("new", p.port, 1, 500, 1).Run(); err != nil { // which fills what they keep anyway
			return err
		}
		time.Sleep(idle + time.Second)
		before := resident(p.cmd.Process.Pid)
		client := b.program("idle", p.port, flows)
		out, err := client.StdoutPipe()
		if err != nil {
			return err
		}
		b.start(client)
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			return err
		}
		fmt.Printf("%-32s %-12s %8d B\n", "resident memory, an idle flow", p.name, (resident(p.cmd.Process.Pid)-before)/flows)
	}
	return nil
}

// family returns a process and its children.
func family(pid int) []int {
	all := []int{pid}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		for _, child := range strings.Fields(string(text)) {
			id, _ := strconv.Atoi(child)
			all = append(all, family(id)...)
		}
	}
	return all
}

// cpu returns the processor time a process and its children have used.
func cpu(pid int) (used time.Duration) {
	for _, id := range family(pid) {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", id))
		for _, file := range files {
			var nanoseconds int64
			text, _ := os.ReadFile(file)
			_, _ = fmt.Sscan(string(text), &nanoseconds)
			used += time.Duration(nanoseconds)
		}
	}
	return used
}

// resident returns their resident memory, in bytes.
func resident(pid int) (bytes int) {
	for _, id := range family(pid) {
		var size, pages int
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", id))
		_, _ = fmt.Sscan(string(text), &size, &pages)
		bytes += pages * os.Getpagesize()
	}
	return bytes
}
