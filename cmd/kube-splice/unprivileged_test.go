package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestWithoutRulesNoPrivilegeIsNeeded(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	folder := openFolder(t)
	text := asText(t, newService("web", "10.96.0.10"), newSlice("web", []string{podA}))
	check(t, os.WriteFile(filepath.Join(folder, "web.yaml"), []byte(text), 0o644))

	p := &program{
		t: t, cmd: asNobody(t, "--manifests", folder, "--redirect", "none", "--proxy-port-range", "42000"),
		said: watchedOutput{word: "msg=ready", found: make(chan struct{})}, exited: make(chan struct{}),
	}
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	p.cmd.Stderr = &p.said
	check(t, c.Node.Start(p.cmd))
	go p.wait()
	t.Cleanup(func() { p.kill(syscall.SIGKILL) })
	p.waitReady()
	wantAnswer(t, c.Outside, "172.20.1.2:42000", "pod-a")
	if rules := c.ourRules(); len(rules) > 0 {
		t.Errorf("rules were written: %v", rules)
	}
	if status := p.kill(syscall.SIGTERM); status != exitOK {
		t.Errorf("status %d after SIGTERM: %s", status, p.said.text())
	}
}
