package config_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-splice/kube-splice/config"
)

const long = 10 * time.Second

// changed tells whether what is done to a file counts as a change of it.
func changed(t *testing.T, path string, do func()) bool {
	t.Helper()
	text, err := os.ReadFile(path)
	check(t, err)
	var noticed bool
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan bool, 1)
		go func() { ended <- config.AwaitChange(ctx, path, text) }()
		time.Sleep(long)
		do()
		time.Sleep(long)
		cancel()
		noticed = <-ended
	})
	return noticed
}

func TestChangeOfTheFileIsNoticed(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(path string) error
		want bool
	}{
		"nothing":               {func(string) error { return nil }, false},
		"touched":               {func(path string) error { return os.Chtimes(path, time.Now(), time.Now()) }, false},
		"written":               {func(path string) error { return os.WriteFile(path, []byte("b"), 0o600) }, true},
		"emptied":               {func(path string) error { return os.Truncate(path, 0) }, true},
		"deleted":               {os.Remove, true},
		"renamed":               {func(path string) error { return os.Rename(path, path+".old") }, true},
		"a pipe in its place":   {func(path string) error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)) }, true},
		"a folder in its place": {func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }, true},
		"written again as it was": {func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.WriteFile(path, []byte("a"), 0o600)
		}, false},
		"replaced": {func(path string) error {
			if err := os.WriteFile(path+".new", []byte("b"), 0o600); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		}, true},
		"away for a moment": {func(path string) error {
			if err := os.Rename(path, path+".old"); err != nil {
				return err
			}
			time.Sleep(time.Second / 2) // less than between two looks
			return os.Rename(path+".old", path)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.conf")
			check(t, os.WriteFile(path, []byte("a"), 0o600))
			if got := changed(t, path, func() { check(t, c.do(path)) }); got != c.want {
				t.Errorf("noticed: %t, want %t", got, c.want)
			}
		})
	}
}

// TestChangeOfAConfigMapVolumeIsNoticed does what the kubelet does: the file is a link
// into ..data, which is a link to a folder; that link is swapped.
func TestChangeOfAConfigMapVolumeIsNoticed(t *testing.T) {
	for text, want := range map[string]bool{"a": false, "b": true} {
		volume := t.TempDir()
		swap := func(folder, text string) {
			check(t, os.Mkdir(filepath.Join(volume, folder), 0o700))
			check(t, os.WriteFile(filepath.Join(volume, folder, "config.conf"), []byte(text), 0o600))
			check(t, os.Symlink(folder, filepath.Join(volume, "..data_tmp")))
			check(t, os.Rename(filepath.Join(volume, "..data_tmp"), filepath.Join(volume, "..data")))
		}
		swap("..1", "a")
		path := filepath.Join(volume, "config.conf")
		check(t, os.Symlink("..data/config.conf", path))
		noticed := changed(t, path, func() {
			swap("..2", text)
			check(t, os.RemoveAll(filepath.Join(volume, "..1")))
		})
		if noticed != want {
			t.Errorf("swapped for %q: noticed %t, want %t", text, noticed, want)
		}
	}
}
