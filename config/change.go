package config

import (
	"bytes"
	"context"
	"os"
	"time"
)

// glance is the time between two looks at the file.
const glance = time.Second

// AwaitChange returns true once the file no longer says what it said when it was
// read, or is gone, and false when ctx ends first. A file that is written again and
// says the same has not changed; one that is being replaced has a moment for that. In
// whose place there is a pipe or a folder is gone.
//
// It reads the file, rather than wait for events about it: a ConfigMap volume changes
// a symbolic link somewhere on the way to the file, of which inotify tells nothing.
func AwaitChange(ctx context.Context, path string, text []byte) bool {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		<-ctx.Done() // a pipe cannot be read again
		return false
	}
	ticker := time.NewTicker(glance)
	defer ticker.Stop()
	last := text
	for {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
		now, err := read(path, mustBeRegular)
		if err != nil {
			now = nil
		}
		// Twice the same, so that a file half written is not the change.
		if !bytes.Equal(now, text) && bytes.Equal(now, last) {
			return true
		}
		last = now
	}
}
