// Command bench measures what relaying TCP costs: kube-splice, HAProxy and nginx's stream
// module, one after the other between the same two ends, in a network of their own. It
// prints a table in Markdown: the median of some rounds, the least and the most, and
// how kube-splice's median compares with the others'. Rounds take turns, so that a busy
// machine is as unfair to one proxy as to the next.
//
// Of the proxies one runs at a time, started anew for each measurement. It has cores of
// its own, and the two ends share the others.
//
// It needs haproxy, nginx with libnginx-mod-stream, ip, taskset and gcc.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

// options are the flags.
type options struct {
	rounds     int
	length     time.Duration // of one measurement
	idle       int           // connections, where the limit on open files allows
	proxies    string
	rows       string
	proxyCores string // as taskset has them, separated by commas
	endsCores  string
	kubeSplice string
}

func main() {
	var o options
	proxyCores, endsCores := shareCores(runtime.NumCPU())
	quick := flag.Bool("quick", false, "one round, of a fifth of the length")
	flag.IntVar(&o.rounds, "rounds", 3, "how often each is measured")
	flag.DurationVar(&o.length, "length", 1500*time.Millisecond, "how long each is measured")
	flag.IntVar(&o.idle, "idle", 8000, "idle connections, where the limit on open files allows")
	flag.StringVar(&o.proxies, "proxies", "direct,loop,copy,haproxy,nginx", "what is compared")
	flag.StringVar(&o.rows, "rows", strings.Join(rowNames(), ","), "what is measured")
	flag.StringVar(&o.proxyCores, "proxy-cores", proxyCores, "cores that the proxy runs on")
	flag.StringVar(&o.endsCores, "ends-cores", endsCores, "cores that the two ends run on")
	flag.StringVar(&o.kubeSplice, "kube-splice", "../../bin/kube-splice", "the program")
	flag.Parse()
	if *quick {
		o.rounds, o.length = 1, o.length/5
	}
	err := lab.Isolate()
	if err == nil {
		err = bench(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// shareCores gives the proxy the last of n cores, and the ends the others.
func shareCores(n int) (proxy, ends string) {
	var others []string
	for core := range max(n-1, 1) {
		others = append(others, fmt.Sprint(core))
	}
	return fmt.Sprint(n - 1), strings.Join(others, ",")
}

// run is one run of the benchmark.
type run struct {
	options
	dir     string
	limit   uint64 // on open files
	started int    // proxies so far; each has a network of its own
	backend *exec.Cmd
}

func bench(o options) error {
	runtime.LockOSThread() // what is started ends with the thread that started it
	rows, err := chosen(rowNames(), o.rows, rows)
	if err != nil {
		return err
	}
	proxies, err := chosen(proxyNames(), o.proxies, proxies)
	if err != nil {
		return err
	}
	b := &run{options: o}
	if b.dir, err = os.MkdirTemp("", "bench"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if err := b.prepare(); err != nil {
		return err
	}
	defer end(b.backend)
	t := newTable(proxies)
	for _, r := range rows {
		samples, err := b.measure(r, proxies)
		if err != nil {
			return err
		}
		t.print(r, samples)
	}
	return nil
}

// chosen returns those of all that are named in a list.
func chosen[T any](names []string, list string, all []T) (some []T, err error) {
	for name := range strings.SplitSeq(list, ",") {
		i := slices.Index(names, name)
		if i < 0 {
			return nil, fmt.Errorf("%q: want some of %s", name, strings.Join(names, ","))
		}
		some = append(some, all[i])
	}
	return some, nil
}

// prepare makes the network and starts the backend.
func (b *run) prepare() error {
	for _, args := range [][]string{
		{"gcc", "-O2", "-o", b.ends(), "ends/tcp.c"},
		{"ip", "address", "add", "10.0.0.1/8", "dev", "lo"}, // every address in it is ours
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	for file, value := range map[string]string{ // connections that are over keep their ports for a minute; 10249 and 10256 are kube-splice's own
		"ip_local_port_range": "11000 65000",
		"tcp_tw_reuse":        "1",
		"tcp_max_tw_buckets":  "2000000",
	} {
		if err := os.WriteFile("/proc/sys/net/ipv4/"+file, []byte(value), 0); err != nil {
			return err
		}
	}
	var files syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files)
	files.Cur, b.limit = files.Max, files.Max
	if err = errors.Join(err, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files)); err != nil { // and for those we start
		return fmt.Errorf("raise the limit on open files: %w", err)
	}
	b.backend = command(b.endsCores, b.ends(), "serve", fmt.Sprint(backendPort))
	return b.backend.Start()
}

// ends is the program of both ends.
func (b *run) ends() string { return filepath.Join(b.dir, "tcp") }

// command is a program that runs on some cores, and ends with us.
func command(cores, name string, args ...string) *exec.Cmd {
	cmd := exec.Command("taskset", append([]string{"-c", cores, name}, args...)...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	return cmd
}

// end stops a program.
func end(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	_ = cmd.Wait()
}
