package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// order is what Up writes to the keeper's standard input.
type order struct {
	Prefix  string `json:"prefix"`
	Port    int    `json:"port"`
	Isolate bool   `json:"isolate"` // the keeper was started in namespaces of its own
}

// answer is what the keeper writes to its standard output when the lab stands, or
// when it could not be built. Nothing else is ever written there.
type answer struct {
	Error string `json:"error,omitempty"`
}

// Keep is the keeper process of a lab that outlives the command that made it: the
// hidden command that [Up] starts. It builds the lab that it reads from its
// standard input, serves in every pod, and removes all of it on SIGTERM, when ctx
// ends, or with the process that [UntilEnv] names. It is of no use when it is called
// by hand.
func Keep(ctx context.Context) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM)
	defer stop()
	ctx, cancel, err := untilProcess(ctx, os.Getenv(UntilEnv))
	if err != nil {
		return err
	}
	defer cancel()
	var o order
	// An Up that ended too soon gives no order, and then there is nothing to keep.
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		return fmt.Errorf("read what lab to keep: %w", err)
	}
	k := &keeper{}
	if err := k.build(o); err != nil {
		return errors.Join(json.NewEncoder(os.Stdout).Encode(answer{Error: err.Error()}), k.close())
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer{}); err != nil {
		return errors.Join(fmt.Errorf("report the lab: %w", err), k.close())
	}
	<-ctx.Done()
	return k.close()
}

// UntilEnv is the environment variable by which Up is told to make a lab that ends,
// at the latest, with the process of that id. Tests set it to their own: a keeper is
// made to outlive those who start it, and theirs would after a crash.
const UntilEnv = "KUBE_SPLICE_LAB_UNTIL"

// untilProcess returns a context that ends with a process too, given its id; an
// empty text is none. The caller cancels it.
func untilProcess(ctx context.Context, id string) (context.Context, context.CancelFunc, error) {
	ctx, cancel := context.WithCancel(ctx)
	if id == "" {
		return ctx, cancel, nil
	}
	pid, err := strconv.Atoi(id)
	pidfd := -1
	if err == nil {
		pidfd, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil {
		cancel()
		return nil, nil, fmt.Errorf("keep the lab until process %q of %s ends: %w", id, UntilEnv, err)
	}
	go cancelAfter(ctx, cancel, pidfd)
	return ctx, cancel, nil
}

// cancelAfter cancels ctx when the process ends, and closes pidfd.
func cancelAfter(ctx context.Context, cancel context.CancelFunc, pidfd int) {
	defer unix.Close(pidfd)
	defer cancel()
	for {
		if ended, err := waitEnd(ctx, pidfd, time.Hour); ended || err != nil {
			return
		}
	}
}

// keeper holds all that a lasting lab consists of.
type keeper struct {
	lab     *Lab
	servers []io.Closer
}

func (k *keeper) build(o order) (err error) {
	if o.Isolate {
		if err := Isolate(); err != nil {
			return err
		}
	}
	if k.lab, err = New(Config{Prefix: o.Prefix}); err != nil {
		return err
	}
	for _, p := range k.lab.Pods {
		for _, serve := range []func(int) (io.Closer, error){p.Serve, p.ServeDatagrams} {
			s, err := serve(o.Port)
			if err != nil {
				return err
			}
			k.servers = append(k.servers, s)
		}
	}
	return nil
}

func (k *keeper) close() error {
	var errs []error
	for _, s := range k.servers {
		errs = append(errs, s.Close())
	}
	if k.lab != nil {
		errs = append(errs, k.lab.Close())
	}
	return errors.Join(errs...)
}
