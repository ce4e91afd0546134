package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

// demoProxy is this program, run again as the proxy.
type demoProxy struct {
	program string
	log     string // the connection log's file
	cmd     *exec.Cmd
	said    watchedOutput
	exited  chan struct{}
}

// startDemoProxy starts the proxy in a namespace and waits until it is ready.
func startDemoProxy(ctx context.Context, node *lab.Namespace, log string, args []string) (*demoProxy, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	p := &demoProxy{
		program: self, log: log, exited: make(chan struct{}),
		cmd:  exec.Command(self, append(args, "--connection-log-file", log)...),
		said: watchedOutput{word: "msg=ready", found: make(chan struct{})},
	}
	p.cmd.Stderr = &p.said
	if err := node.Start(p.cmd); err != nil {
		return nil, fmt.Errorf("start the proxy: %w", err)
	}
	go p.wait()
	select {
	case <-p.said.found:
		return p, nil
	case <-p.exited:
		return nil, fmt.Errorf("the proxy ended at once: %s", p.said.text())
	case <-time.After(20 * time.Second):
		err = fmt.Errorf("the proxy is not ready after 20 s: %s", p.said.text())
	case <-ctx.Done():
		err = ctx.Err()
	}
	p.stop()
	return nil, err
}

// wait is the goroutine that waits for the program's end.
func (p *demoProxy) wait() {
	_ = p.cmd.Wait() // how it ended is in what it said
	close(p.exited)
}

// stop ends the proxy.
func (p *demoProxy) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// watchedOutput keeps what is written to it and tells when a word has come.
type watchedOutput struct {
	word  string
	found chan struct{} // closed when it has

	mu  sync.Mutex
	buf bytes.Buffer
	was bool
}

func (w *watchedOutput) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(b)
	if !w.was && bytes.Contains(w.buf.Bytes(), []byte(w.word)) {
		w.was = true
		close(w.found)
	}
	return len(b), nil
}

func (w *watchedOutput) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.TrimSpace(w.buf.String())
}
