package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// UpOptions says how a lasting lab is made.
type UpOptions struct {
	Prefix string // of the names of the namespaces; empty means "ks-"
	Port   int    // at which the pods' web and UDP servers listen; 0 means 8080
}

// Up builds the standard lab with a web and a UDP server in every pod, and leaves it running
// after this program ends, until [Down]. The lab is held by a keeper process, which
// is this program run again with the arguments "lab keep"; the program calls [Keep]
// then. As root the namespaces are named in /run/netns; without root, the keeper
// lives in a user namespace of its own with names of its own.
func Up(ctx context.Context, options UpOptions) (*Running, error) {
	if options.Prefix == "" {
		options.Prefix = "ks-"
	}
	if options.Port == 0 {
		options.Port = 8080
	}
	if strings.Contains(options.Prefix, "/") {
		return nil, fmt.Errorf("start the lab: the prefix %q holds a slash; names of namespaces cannot", options.Prefix)
	}
	dir, err := openStateDir()
	if err != nil {
		return nil, err
	}
	defer dir.close()
	if err := dir.clear(); err != nil {
		return nil, err
	}
	r, err := startKeeper(ctx, dir, options)
	if err != nil {
		return nil, fmt.Errorf("start the lab: %w", err)
	}
	return r, nil
}

// clear removes what a keeper that died has left, and refuses when one is alive.
func (d *stateDir) clear() error {
	s, err := d.read()
	if err != nil || s == nil {
		return err
	}
	if pidfd := s.hold(); pidfd >= 0 {
		unix.Close(pidfd)
		return fmt.Errorf("the lab is up already, kept by process %d; end it with: kube-splice lab down", s.PID)
	}
	return s.sweep()
}

// startKeeper starts the keeper, records it before it makes anything, and waits
// until the lab stands. The record stays when the keeper crashed, for the next
// command to clean up; a keeper that reported an error has cleaned up itself.
func startKeeper(ctx context.Context, dir *stateDir, options UpOptions) (*Running, error) {
	r := &Running{Prefix: options.Prefix, Port: options.Port, ownRun: !privileged()}
	cmd, err := keeperCommand(dir, r.ownRun)
	if err != nil {
		return nil, err
	}
	defer cmd.Stderr.(io.Closer).Close()
	orders, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	answers, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(explainStart(err), dir.remove())
	}
	r.PID = cmd.Process.Pid
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()

	err = dir.write(&state{PID: r.PID, Started: startOf(r.PID), Prefix: r.Prefix, OwnRun: r.ownRun})
	if err == nil {
		err = dir.instruct(orders, answers, order{Prefix: r.Prefix, Port: options.Port, Isolate: r.ownRun})
	}
	orders.Close()
	if err != nil {
		_ = cmd.Wait() // it has said why, or got no order and ends
		return nil, err
	}
	answers.Close()
	return r, cmd.Process.Release()
}

// keeperCommand is this program as a keeper in a session of its own, which no
// terminal can end. What it says after Up has gone is kept in the state folder.
func keeperCommand(dir *stateDir, ownNamespaces bool) (*exec.Cmd, error) {
	log, err := os.OpenFile(filepath.Join(dir.path, logFile), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the keeper's log: %w", err)
	}
	cmd := exec.Command("/proc/self/exe", "lab", "keep")
	cmd.Args[0] = os.Args[0]
	cmd.Dir = "/"
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if ownNamespaces {
		here, err := mountNamespace()
		if err != nil {
			log.Close()
			return nil, err
		}
		isolated(cmd, here)
	}
	return cmd, nil
}

// instruct gives the keeper its order and waits for its answer.
func (d *stateDir) instruct(orders io.Writer, answers io.Reader, o order) error {
	if err := json.NewEncoder(orders).Encode(o); err != nil {
		return fmt.Errorf("tell the keeper what to do: %w", err)
	}
	var a answer
	if err := json.NewDecoder(answers).Decode(&a); err != nil {
		return fmt.Errorf("the keeper ended too soon (%w); %s says why", err, filepath.Join(d.path, logFile))
	}
	if a.Error != "" {
		return errors.Join(errors.New(a.Error), d.remove())
	}
	return nil
}
