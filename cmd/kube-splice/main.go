// Command kube-splice is a userspace Kubernetes Service proxy.
//
// The bare command runs the proxy; subcommands are the tools around it, one file
// each. It holds the wiring and the daemon loop (daemon.go), which is the only
// place where a Snapshot from package source meets the listeners of package proxy
// and the rules of package redirect. What those do is theirs; nothing is decided
// here about Services, bytes or packets.
//
// It answers to cmd/kube-proxy and cmd/kube-proxy/app in Kubernetes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// Exit statuses.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

func main() {
	ctx, hurry := followSignals()
	env := environment{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Hurry: hurry}
	os.Exit(run(ctx, env, os.Args[1:]))
}

// followSignals returns a context that the first SIGTERM or SIGINT ends, and one
// that the second ends. Some seconds later, in case that did not help, they have
// their usual effect.
//
// A reader of our output that goes away must not take us along: writing to it
// fails with EPIPE instead of killing us.
func followSignals() (ctx, hurry context.Context) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := context.WithCancel(context.Background())
	hurry, stopAtOnce := context.WithCancel(context.Background())
	go func() {
		<-signals
		stop()
		<-signals
		stopAtOnce()
		time.Sleep(3 * time.Second)
		signal.Reset(syscall.SIGTERM, syscall.SIGINT)
	}()
	return ctx, hurry
}

// environment is what a command may touch beside its arguments.
type environment struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Hurry          context.Context // ends when shutting down must not take time any more
}

// run runs the command line and returns the exit status. The command ends when
// ctx does.
func run(ctx context.Context, env environment, args []string) int {
	root := newRootCommand(env)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	_, _ = fmt.Fprintf(env.Stderr, "kube-splice: %s\n", oneLine(err))
	if errors.As(err, new(usageError)) {
		return exitUsage
	}
	return exitError
}

// usageError is an error in how the program was called.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' }), "; ")
}
