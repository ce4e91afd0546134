package source

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// grace is how long a file may be broken before that is said and believed: a
// program that writes it in place needs a moment.
const grace = 100 * time.Millisecond

// errEmptied is the state of a file between `kubectl get ... > file` opening it
// and kubectl writing to it, which takes as long as the API server takes.
var errEmptied = errors.New("the file is empty; delete it to remove its objects")

// files is the last good state of the manifest files of one folder, or of one
// file of it. Use from one goroutine.
type files struct {
	dir     string
	only    string // base name; empty: every manifest of dir
	log     *slog.Logger
	decoder *decoder
	known   map[string]*file // by path
	gone    bool             // dir cannot be read at present
}

// file is one manifest file.
type file struct {
	text    []byte    // as last judged; nil: not judged
	good    contents  // as last understood
	hasGood bool      // it was understood at some time
	suspect time.Time // when it was first seen broken; zero: good, or said
	said    string    // the fault already said; empty: none
}

// isManifest reports whether a file of that name in dir is one of ours. Hidden
// files are an editor's, or the inner works of a ConfigMap volume.
func (f *files) isManifest(name string) bool {
	if f.only != "" {
		return name == f.only
	}
	return !strings.HasPrefix(name, ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
}

// list returns the manifest files, sorted by name. It fails if the folder cannot
// be read, not if the one file of it is absent.
func (f *files) list() ([]fs.DirEntry, error) {
	if f.only == "" {
		entries, err := os.ReadDir(f.dir)
		return slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.IsDir() || !f.isManifest(e.Name()) }), err
	}
	if _, err := os.Stat(f.dir); err != nil {
		return nil, err
	}
	info, err := os.Lstat(filepath.Join(f.dir, f.only))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return []fs.DirEntry{fs.FileInfoToDirEntry(info)}, nil
}

// read brings the state up to date. It returns false when a file is broken but
// may still be in the middle of being written: read again after the grace.
func (f *files) read(now time.Time) (settled bool) {
	entries, err := f.list()
	if err != nil {
		if !f.gone {
			f.log.Warn("cannot read the manifest folder; its last state stays in force until it is back", "folder", f.dir, "error", err)
		}
		f.gone = true
		return true
	}
	if f.gone {
		f.gone = false
		f.log.Info("the manifest folder is back", "folder", f.dir)
	}
	present := make(map[string]*file, len(entries))
	settled = true
	for _, e := range entries {
		path := filepath.Join(f.dir, e.Name())
		known := f.known[path]
		if known == nil {
			known = &file{}
			f.log.Debug("reading a manifest file", "file", path)
		}
		text, err := readRegular(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		present[path] = known
		settled = f.update(path, known, text, err, now) && settled
	}
	f.known = present
	return settled
}

// update judges what was just read of a file.
func (f *files) update(path string, known *file, text []byte, err error, now time.Time) (settled bool) {
	if err == nil && known.text != nil && bytes.Equal(text, known.text) {
		return true
	}
	var read contents
	if err == nil {
		read, err = f.understand(known, text)
	}
	if err == nil {
		if known.said != "" {
			f.log.Info("a manifest file is good again", "file", path)
		}
		*known = file{text: text, good: read, hasGood: true}
		return true
	}
	fault := err.Error()
	if fault != known.said {
		if known.suspect.IsZero() {
			known.suspect = now
		}
		if now.Sub(known.suspect) < grace {
			known.text = nil
			return false
		}
		text := "a manifest file is broken; its last good state stays in force"
		if !known.hasGood {
			text = "a manifest file is broken and has no good state yet: nothing in it is served until it is mended"
		}
		f.log.Error(text, "file", path, "error", fault)
	}
	known.text, known.suspect, known.said = text, time.Time{}, fault
	return true
}

// understand decodes a file. An empty one that held objects is being written.
func (f *files) understand(known *file, text []byte) (contents, error) {
	if len(text) == 0 && len(known.good.objects) > 0 {
		return contents{}, errEmptied
	}
	return f.decoder.decode(text)
}

// readRegular reads a regular file; anything else might block for ever.
func readRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("it is not a regular file (%s)", info.Mode().Type())
	}
	return os.ReadFile(path)
}

// watched returns the folders in which a change may change the state: the folder
// itself, and those that symbolic links in it lead to.
func (f *files) watched() []string {
	folders := []string{f.dir}
	entries, _ := f.list() // read, which follows, says what is wrong
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink == 0 {
			continue
		}
		if target, err := filepath.EvalSymlinks(filepath.Join(f.dir, e.Name())); err == nil {
			folders = append(folders, filepath.Dir(target))
		}
	}
	return folders
}

// merge puts together what all files hold.
func (f *files) merge(nodeName string) *merger {
	m := newMerger(nodeName)
	for _, path := range slices.Sorted(maps.Keys(f.known)) {
		m.add(path, f.known[path].good)
	}
	return m
}
