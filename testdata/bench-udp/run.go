package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"
)

// run is one run of the benchmark.
type run struct {
	dir             string
	rounds, seconds int
	wanted          *regexp.Regexp // rows
	started         []*exec.Cmd

	// Of the rows that are measured now.
	proxies []proxy
	prefix  string // of what a row is called
	clients string // the network namespace that the load comes from
}

// proxy is one of those compared.
type proxy struct {
	name, addr string
	cmd        *exec.Cmd
}

// program returns ends/udp.c with these arguments.
func (b *run) program(args ...any) *exec.Cmd {
	var text []string
	for _, a := range args {
		text = append(text, fmt.Sprint(a))
	}
	return exec.Command(filepath.Join(b.dir, "udp"), text...)
}

// in has cmd run in a network namespace ("": this one).
func in(namespace string, cmd *exec.Cmd) *exec.Cmd {
	if namespace == "" {
		return cmd
	}
	return exec.Command("ip", append([]string{"netns", "exec", namespace}, cmd.Args...)...)
}

func (b *run) start(cmd *exec.Cmd) (*exec.Cmd, error) {
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	b.started = append(b.started, cmd)
	return cmd, nil
}

func (b *run) stop() {
	for _, cmd := range b.started {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	}
	b.started = nil
}

// ask runs a load and returns how many datagrams were sent and answered.
func (b *run) ask(args ...any) (sent, answered float64, err error) {
	out, err := in(b.clients, b.program(args...)).Output()
	if err != nil {
		return 0, 0, err
	}
	_, err = fmt.Sscan(string(out), &sent, &answered)
	return sent, answered, err
}

// ready waits until every proxy answers.
func (b *run) ready() error {
	for _, p := range b.proxies {
		for deadline := time.Now().Add(10 * time.Second); ; {
			_, answered, err := b.ask("new", p.addr, 1, 0, 1, 1)
			if err != nil {
				return err
			}
			if answered > 0 {
				break
			}
			if time.Now().After(deadline) {
				return errors.New(p.name + " does not answer at " + p.addr)
			}
		}
	}
	return nil
}

// measure prints a line for each load and proxy.
func (b *run) measure(loads []load) error {
	for _, l := range loads {
		if what := b.prefix + l.what; b.wanted.MatchString(what) {
			if err := b.compare(what, l.args); err != nil {
				return err
			}
		}
	}
	return nil
}

// compare measures one load at every proxy, in turns.
func (b *run) compare(what string, load []any) error {
	rates, lost := make([][]float64, len(b.proxies)), make([]float64, len(b.proxies))
	for range b.rounds {
		for i, p := range b.proxies {
			before := cpu(p.cmd.Process.Pid)
			sent, answered, err := b.ask(append([]any{load[0], p.addr, b.seconds}, load[1:]...)...)
			if err != nil {
				return err
			}
			used := cpu(p.cmd.Process.Pid) - before
			rates[i] = append(rates[i], answered/used.Seconds())
			lost[i] += (1 - answered/sent) / float64(b.rounds)
			if load[0] == "new" {
				time.Sleep(idle + time.Second) // until its flows are gone
			}
		}
	}
	for i, p := range b.proxies {
		slices.Sort(rates[i])
		fmt.Printf("%-40s %-12s %10.0f %10.0f to %8.0f %7.1f%%\n", what, p.name, rates[i][len(rates[i])/2], rates[i][0], rates[i][len(rates[i])-1], 100*lost[i])
	}
	return nil
}

// memory prints the resident memory of an idle flow.
func (b *run) memory(flows int) error {
	const what = "resident memory, an idle flow"
	if !b.wanted.MatchString(what) {
		return nil
	}
	for _, p := range b.proxies {
		if _, _, err := b.ask("new", p.addr, 1, 500, 1, flows); err != nil { // which fills what they keep anyway
			return err
		}
		time.Sleep(idle + time.Second)
		before := resident(p.cmd.Process.Pid)
		client := b.program("idle", p.addr, flows)
		out, err := client.StdoutPipe()
		if err != nil {
			return err
		}
		if _, err := b.start(client); err != nil {
			return err
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			return err
		}
		fmt.Printf("%-40s %-12s %8d B\n", what, p.name, (resident(p.cmd.Process.Pid)-before)/flows)
	}
	return nil
}
