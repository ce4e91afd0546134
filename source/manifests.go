package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/kube-splice/kube-splice/service"
)

// Manifests is a source of Services for a node without an API server: files in
// YAML or JSON such as `kubectl get services,endpointslices -A -o yaml` writes.
type Manifests struct {
	// Path is a file, a folder (its *.yaml, *.yml and *.json, neither hidden ones nor
	// its subfolders), or "-" for Stdin. Files and folders are followed as they change; Stdin, and a
	// pipe or device given as Path, is read once to its end.
	Path  string
	Stdin io.Reader // stays the caller's to close
	// NodeName names the Node object that stands for this node, and is as in Options.
	NodeName string
	// KnownBalancer and NoExternalIPs are as in Options.
	KnownBalancer func(name string) bool
	NoExternalIPs bool
	// Log takes one line for each fault when it appears, with the file it is in, and
	// at Debug the name of each file that is read. Nil: slog.Default().
	Log *slog.Logger
}

// Run publishes a Snapshot of what Path holds, then another one after each
// change, until ctx ends, and returns nil. It calls publish from its own
// goroutine; while a call lasts, changes gather, and the next Snapshot has them all.
//
// It returns an error at once if Path cannot be read or watched. A broken file in
// a folder is no error: it is logged, and its last good state, if it had one, stays
// in force. A broken stream is one, since nothing could mend it, and so is a stream
// without any object: the program that was to write it has failed. A List without
// items is an object.
func (m *Manifests) Run(ctx context.Context, publish func(*service.Snapshot)) error {
	r := &run{Manifests: *m, log: m.Log, publish: publish}
	if r.log == nil {
		r.log = slog.Default()
	}
	if m.Path == "-" {
		return r.stream(ctx, "standard input", func() ([]byte, error) { return io.ReadAll(m.Stdin) })
	}
	info, err := os.Stat(m.Path)
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	switch {
	case info.IsDir():
		return r.follow(ctx, filepath.Clean(m.Path), "")
	case info.Mode().IsRegular():
		return r.follow(ctx, filepath.Dir(m.Path), filepath.Base(m.Path))
	}
	return r.stream(ctx, m.Path, func() ([]byte, error) { return os.ReadFile(m.Path) })
}

// run is one call of Run.
type run struct {
	Manifests
	log      *slog.Logger
	publish  func(*service.Snapshot)
	last     *service.Snapshot
	said     map[Notice]bool // the notices now in force
	nodeless bool            // that our Node is not among the Nodes was said
}

// errNoObjects is the fault of a stream that held nothing at all. Were it taken for
// "no Services", a failed kubectl before the pipe would remove every rule.
var errNoObjects = errors.New("it held no object; did the command before the pipe fail?")

// stream publishes what read returns, once. If ctx ends first, read is left to
// end with its descriptor.
func (r *run) stream(ctx context.Context, name string, read func() ([]byte, error)) error {
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	readAll := func() {
		text, err := read()
		done <- result{text, err}
	}
	go readAll()
	select {
	case <-ctx.Done():
		return nil
	case got := <-done:
		if got.err != nil {
			return fmt.Errorf("read manifests from %s: %w", name, got.err)
		}
		read, err := newDecoder().decode(got.text)
		if err == nil && read.documents == 0 {
			err = errNoObjects
		}
		if err != nil {
			return fmt.Errorf("read manifests from %s: %w", name, err)
		}
		merged := newMerger(r.NodeName)
		merged.add(name, read)
		r.build(merged)
	}
	<-ctx.Done()
	return nil
}

// follow publishes the state of a folder, or of one file of it, as it changes.
func (r *run) follow(ctx context.Context, dir, only string) (err error) {
	if err := readable(dir, only); err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	state := &files{dir: dir, only: only, log: r.log, decoder: newDecoder()}
	w, err := newWatch(dir, state.isManifest, r.log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	for {
		w.place(state.watched())
		settled, ended := r.read(ctx, state)
		if ended {
			return nil
		}
		again := time.Duration(0)
		if !settled {
			again = grace
		}
		// A file may be half-written at the start too; then its last good state is
		// not "nothing", it is not known yet.
		if settled || r.last != nil {
			r.build(state.merge(r.NodeName))
		}
		if !w.wait(ctx, again) {
			return nil
		}
	}
}

// read reads the files, and reports whether ctx ended first: a file on a file system
// that hangs holds its reader, but not the program's end. The goroutine that reads is
// left to it then.
func (r *run) read(ctx context.Context, state *files) (settled, ended bool) {
	done := make(chan bool, 1)
	readAll := func() { done <- state.read(time.Now()) }
	go readAll()
	select {
	case settled = <-done:
		return settled, false
	case <-ctx.Done():
		return false, true
	}
}

// readable returns why the folder, or its one file, cannot be read.
func readable(dir, only string) error {
	if only == "" {
		_, err := os.ReadDir(dir)
		return err
	}
	f, err := os.Open(filepath.Join(dir, only))
	if err != nil {
		return err
	}
	return f.Close()
}

// build publishes the Snapshot of the objects, unless it is the last one, and
// logs what is newly wrong with them.
func (r *run) build(m *merger) {
	next, about := Build(r.last, m.objects, Options{NodeName: r.NodeName, KnownBalancer: r.KnownBalancer, NoExternalIPs: r.NoExternalIPs})
	now := map[Notice]bool{}
	r.warn("kind", m.skipped, m.files, now)
	r.warn("object", append(m.said, about...), m.files, now)
	r.said = now
	if m.nodeless() && !r.nodeless {
		r.log.Info(fmt.Sprintf("no Node %q in the manifests; this node's addresses are taken from its interfaces", r.NodeName))
	}
	r.nodeless = m.nodeless()
	if next != r.last {
		r.last = next
		r.publish(next)
	}
}

// warn logs the notices that were not in force before and adds all to those that
// are now.
func (r *run) warn(subject string, list []Notice, files map[string]string, now map[Notice]bool) {
	for _, n := range list {
		if !now[n] && !r.said[n] {
			about := []any{subject, n.Object}
			if file, known := files[n.Object]; known {
				about = append(about, "file", file)
			}
			r.log.Warn(n.Text, about...)
		}
		now[n] = true
	}
}
