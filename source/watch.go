package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// quiet is how long nothing may happen before a change counts as complete.
	quiet = 50 * time.Millisecond
	// patience bounds the wait for quiet, so that constant writing hides nothing.
	patience = 400 * time.Millisecond
	// heartbeat is how often it is checked that the folder's path still leads to
	// the folder being watched; a symbolic link anywhere in the path may have been
	// swapped, which no watch of the old folder tells.
	heartbeat = 500 * time.Millisecond
)

// watch waits for changes in a folder.
type watch struct {
	dir     string
	concern func(name string) bool // of a base name in dir
	log     *slog.Logger
	notify  *fsnotify.Watcher
	at      os.FileInfo // what dir led to when the watch was placed; nil: not watched
	failed  bool        // that something cannot be watched was said
}

// newWatch returns a watch that is not placed yet; Close it.
func newWatch(dir string, concern func(name string) bool, log *slog.Logger) (*watch, error) {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w (is sysctl fs.inotify.max_user_instances too low?)", dir, err)
	}
	return &watch{dir: dir, concern: concern, log: log, notify: notify}, nil
}

// Close ends the watch.
func (w *watch) Close() error { return w.notify.Close() }

// place watches the folders as their paths lead now. Read after it, not before:
// what changes from here on is noticed. A folder that cannot be watched, because
// it is gone or the kernel's limit is reached, is polled at the heartbeat.
func (w *watch) place(folders []string) {
	for _, path := range w.notify.WatchList() {
		// An error says that the kernel removed the watch first.
		_ = w.notify.Remove(path)
	}
	w.at, _ = os.Stat(w.dir)
	for _, path := range folders {
		err := w.notify.Add(path)
		if err == nil {
			continue
		}
		if !errors.Is(err, fs.ErrNotExist) && !w.failed {
			w.failed = true
			w.log.Warn("cannot watch for changes; looking twice a second instead", "folder", path, "error", err)
		}
		w.at = nil
	}
}

// wait returns true when it is time to read again: something changed and then
// was quiet, or the time given by again (0: none) is over. It returns false when
// ctx ends.
func (w *watch) wait(ctx context.Context, again time.Duration) bool {
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	var settled, retry <-chan time.Time
	if again > 0 {
		retry = time.After(again)
	}
	var began time.Time
	for {
		select {
		case <-ctx.Done():
			return false
		case event := <-w.notify.Events:
			if !w.concerns(event) {
				continue
			}
			if began.IsZero() {
				began = time.Now()
			}
			settled = time.After(min(quiet, patience-time.Since(began)))
		case <-w.notify.Errors:
			// The kernel's queue ran over: anything may have changed.
			return true
		case <-settled:
			return true
		case <-retry:
			return true
		case <-beat.C:
			if w.lost() {
				return true
			}
		}
	}
}

// concerns reports whether an event may change a manifest. In the folder itself
// that is one of its manifests, or the link by which a ConfigMap volume swaps all
// of them at once; where links lead to, anything.
func (w *watch) concerns(event fsnotify.Event) bool {
	if event.Name == "" {
		return false
	}
	dir, base := filepath.Split(event.Name)
	return filepath.Clean(dir) != w.dir || w.concern(base) || base == "..data"
}

// lost reports whether the folder's path no longer leads to what is watched, or
// leads somewhere again.
func (w *watch) lost() bool {
	now, err := os.Stat(w.dir)
	if err != nil {
		return w.at != nil
	}
	return w.at == nil || !os.SameFile(now, w.at)
}
