package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

// small gives the program one Service with one pod, and a client to ask.
func (c *cluster) small() {
	c.t.Helper()
	c.serveAll("pod-a")
	c.apply("web", newService("web", "10.96.0.10"), newSlice("web", []string{podA}))
}

func TestHangupOpensTheConnectionLogAnew(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	p := c.start()
	wantAnswer(t, c.Outside, "10.96.0.10:80", "pod-a")
	p.records(1)
	check(t, os.Rename(p.log, p.log+".1"))
	check(t, p.cmd.Process.Signal(syscall.SIGHUP))
	eventually(t, func() error { _, err := os.Stat(p.log); return err })
	wantAnswer(t, c.Outside, "10.96.0.10:80", "pod-a")
	if records := p.records(1); len(records) != 1 {
		t.Errorf("%d records in the new file, want 1", len(records))
	}
}

func TestHangupDoesNotEndTheProgram(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	p := c.start("--connection-log", "off", "--connection-log-file", "")
	check(t, p.cmd.Process.Signal(syscall.SIGHUP))
	wantAnswer(t, c.Outside, "10.96.0.10:80", "pod-a")
	if code := p.kill(syscall.SIGTERM); code != exitOK {
		t.Errorf("exit status %d", code)
	}
}

func TestReaderOfTheLogThatGoesAwayDoesNotEndTheProgram(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	reader, sink, err := os.Pipe()
	check(t, err)
	p := c.prepare("", "--connection-log-file", "")
	p.cmd.Stdout = sink
	c.run(p)
	p.waitReady()
	check(t, sink.Close())
	wantAnswer(t, c.Outside, "10.96.0.10:80", "pod-a")
	if line, err := bufio.NewReader(reader).ReadString('\n'); !strings.Contains(line, "default/web:http") {
		t.Fatalf("standard output has %q (%v)", line, err)
	}
	check(t, reader.Close())
	for range 3 {
		wantAnswer(t, c.Outside, "10.96.0.10:80", "pod-a")
	}
	eventually(t, func() error {
		if !strings.Contains(p.said.text(), "broken pipe") {
			return fmt.Errorf("the loss of records is not said: %s", p.said.text())
		}
		return nil
	})
	if code := p.kill(syscall.SIGTERM); code != exitOK {
		t.Errorf("exit status %d", code)
	}
}

func TestSecondProgramOnOneNodeIsTurnedAway(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	c.start()
	rules := c.ourRules()
	second := c.launch("")
	if code := second.waitExit(); code != exitError {
		t.Errorf("exit status %d, want %d", code, exitError)
	}
	if said := second.said.text(); !strings.Contains(said, "another kube-splice serves this node") || strings.Count(said, "\n") > 0 {
		t.Errorf("it said %q", said)
	}
	if now := c.ourRules(); strings.Join(now, "\n") != strings.Join(rules, "\n") {
		t.Errorf("it changed the rules from\n%v\nto\n%v", rules, now)
	}
}

func TestHangupWhileTheProgramStartsDoesNotEndIt(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	slow := t.TempDir()
	asked := slow + "/asked"
	const save = "#!/bin/sh\nif [ ! -e %[1]s ]; then : >%[1]s; sleep 1; fi\nPATH=${PATH#*:} exec iptables-save \"$@\"\n"
	check(t, os.WriteFile(slow+"/iptables-save", fmt.Appendf(nil, save, asked), 0o755))
	p := c.launch("PATH=" + slow + ":$PATH")
	eventually(t, func() error { _, err := os.Stat(asked); return err })
	check(t, p.cmd.Process.Signal(syscall.SIGHUP))
	p.waitReady()
	wantAnswer(t, c.Outside, "10.96.0.10:80", "pod-a")
}

func TestProgramToldToStopWhileItStartsEndsWell(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	slow := t.TempDir()
	asked := slow + "/asked"
	check(t, os.WriteFile(slow+"/iptables-save", []byte("#!/bin/sh\n: >"+asked+"\nexec sleep 5\n"), 0o755))
	p := c.launch("PATH=" + slow + ":$PATH")
	eventually(t, func() error { _, err := os.Stat(asked); return err })
	watch := lab.StartStopwatch()
	if code := p.kill(syscall.SIGTERM); code != exitOK || watch.Elapsed() > 4*time.Second {
		t.Errorf("exit status %d after %v: %s", code, watch.Elapsed(), p.said.text())
	}
}
