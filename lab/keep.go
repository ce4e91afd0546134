package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

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
// standard input, serves in every pod, and removes all of it on SIGTERM or when ctx
// ends. It is of no use when it is called by hand.
func Keep(ctx context.Context) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM)
	defer stop()
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
		s, err := p.Serve(o.Port)
		if err != nil {
			return err
		}
		k.servers = append(k.servers, s)
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
