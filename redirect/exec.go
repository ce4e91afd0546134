package redirect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	goiptables "github.com/coreos/go-iptables/iptables"
)

// statusBusy is the exit status with which the iptables programs say that the
// lock or another resource was taken: try again.
const statusBusy = 4

// A busy program is tried this often, with pauses that grow from the first to
// the longest: about six seconds in all, besides what each waits for the lock.
const (
	tries        = 10
	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
)

// programError is a program that ended with another status than zero.
type programError struct {
	program string
	status  int
	message string // what it printed to standard error, without blank ends
}

func (e *programError) Error() string {
	message, _, _ := strings.Cut(e.message, "\n")
	return fmt.Sprintf("run %s: exit status %d: %s%s", e.program, e.status, message, hint(e.message))
}

// hint says how to mend what the program complains about, where we know.
func hint(message string) string {
	if denied(message) {
		return " (run as root, or give CAP_NET_ADMIN and CAP_NET_RAW)"
	}
	return ""
}

func denied(message string) bool {
	return strings.Contains(message, "Permission denied") || strings.Contains(message, "Operation not permitted")
}

// run starts a program once and returns what it printed. It ends with ctx.
func run(ctx context.Context, input []byte, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	// A wrapper script's children may hold the pipes after it was killed. On a busy
	// machine, what a program printed may be read only a while after its end.
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("run %s: %w", program, context.Cause(ctx))
	case errors.As(err, &exit):
		return nil, &programError{program, exit.ExitCode(), strings.TrimSpace(stderr.String())}
	case errors.Is(err, exec.ErrNotFound):
		return nil, fmt.Errorf("find %s in PATH: install the iptables package: %w", program, exec.ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("run %s: %w", program, err)
	}
	return stdout.Bytes(), nil
}

// retry calls f until it does not fail for a busy resource, ctx ends or the
// tries are used up.
func retry(ctx context.Context, f func() error) error {
	pause := firstPause
	for try := 1; ; try++ {
		err := f()
		if err == nil || !busy(err) || try == tries {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w, while waiting to try again: %w", context.Cause(ctx), err)
		case <-timer.C:
		}
		pause = min(2*pause, longestPause)
	}
}

// busy reports whether err is a program's exit with statusBusy. The programs end
// with it too for want of a privilege or of a kernel module, which does not pass.
func busy(err error) bool {
	var ours *programError
	var theirs *goiptables.Error
	switch {
	case errors.As(err, &ours):
		return ours.status == statusBusy && passes(ours.message)
	case errors.As(err, &theirs):
		return theirs.ExitStatus() == statusBusy && passes(theirs.Error())
	}
	return false
}

func passes(message string) bool {
	return !denied(message) && !strings.Contains(message, "missing kernel module")
}

// absent reports whether err says that there are no programs, or that they found
// no table to work on, rather than that they could not be run now.
func absent(err error) bool {
	var failed *programError
	return errors.Is(err, exec.ErrNotFound) ||
		errors.As(err, &failed) && failed.status > 0 && !busy(err) && !denied(failed.message)
}
