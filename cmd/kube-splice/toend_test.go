package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// runToEnd runs kube-splice on the lab's node to its end, and returns all it printed
// and its exit status. Setup is as for launch.
func (c *cluster) runToEnd(setup string, args ...string) (said string, status int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", setup + "\n" + `exec "$0" "$@"`, os.Args[0]}, args...)...)
	return toEnd(c.t, cmd, c.Node.Start)
}

// toEnd runs a command that is kube-splice to its end. Unless cmd.Env is set, its
// environment is this program's.
func toEnd(t testing.TB, cmd *exec.Cmd, start func(*exec.Cmd) error) (said string, status int) {
	t.Helper()
	var out bytes.Buffer
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, asProgram+"=1")
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	check(t, start(cmd))
	err := cmd.Wait()
	if exit := new(exec.ExitError); err != nil && (!errors.As(err, &exit) || exit.ExitCode() < 0) {
		t.Fatalf("run %v: %v: %s", cmd.Args, err, out.String())
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// launchWithInput is launch of a program that reads its manifests from standard
// input, which is what is written to objects until it is closed.
func (c *cluster) launchWithInput(setup string, args ...string) (p *program, objects *os.File) {
	c.t.Helper()
	path := filepath.Join(c.t.TempDir(), "objects")
	check(c.t, syscall.Mkfifo(path, 0o600))
	// Open for reading too, so that nobody has to wait for the other end.
	objects, err := os.OpenFile(path, os.O_RDWR, 0)
	check(c.t, err)
	p = c.launch(setup+"\nexec <"+path, append(args, "--manifests", "-")...)
	return p, objects
}
