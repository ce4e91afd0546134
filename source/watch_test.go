package source_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/source"
)

func TestFolderIsFollowed(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write(t, path("a.yaml"), manifest("a", "1"))
	write(t, path(".hidden.yaml"), manifest("hidden", "66"))
	write(t, path("b.yaml~"), manifest("backup", "67"))
	f := follow(t, source.Manifests{Path: dir})
	first := f.expect(t, "10.96.0.1")

	write(t, path("b.yml"), manifest("b", "2"))
	second := f.expect(t, "10.96.0.1", "10.96.0.2")
	if second.Ports[0] != first.Ports[0] {
		t.Error("a.yaml did not change, but its port's pointer did")
	}
	write(t, path("c.json"), `{"apiVersion":"v1","kind":"Service","metadata":{"name":"c"},"spec":{"clusterIP":"10.96.0.3","ports":[{"port":80}]}}`)
	f.expect(t, "10.96.0.1", "10.96.0.2", "10.96.0.3")
	replace(t, path("a.yaml"), manifest("a", "11"))
	f.expect(t, "10.96.0.11", "10.96.0.2", "10.96.0.3")
	rename(t, path("b.yml"), path("b.disabled"))
	f.expect(t, "10.96.0.11", "10.96.0.3")
	if err := os.Remove(path("a.yaml")); err != nil {
		t.Fatal(err)
	}
	f.expect(t, "10.96.0.3")
	equal(t, "log", f.log.rest(), nil)
}

func TestBrokenFileKeepsItsLastGoodState(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	write(t, a, manifest("a", "1")+"---\n"+manifest("aa", "11"))
	write(t, b, broken)
	f := follow(t, source.Manifests{Path: dir})
	f.log.wait(t, "level=ERROR", "no good state yet: nothing in it is served", b, "document 1", "Service web", "spec.clusterIp")
	f.expect(t, "10.96.0.1", "10.96.0.11")

	write(t, a, manifest("a", "2")+"---\n"+broken)
	f.log.wait(t, "level=ERROR", "its last good state stays in force", a, "document 2", "spec.clusterIp")
	f.quiet(t)
	write(t, b, manifest("b", "3"))
	f.expect(t, "10.96.0.1", "10.96.0.11", "10.96.0.3")
	f.log.wait(t, "level=INFO", "good again", b)
	write(t, a, manifest("a", "2"))
	f.expect(t, "10.96.0.2", "10.96.0.3")
	f.log.wait(t, "level=INFO", "good again", a)
	equal(t, "log", f.log.rest(), nil)
}

func TestFaultIsSaidOnceWhileOthersChange(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "bad.yaml"), broken)
	write(t, filepath.Join(dir, "odd.yaml"), "{apiVersion: apps/v1, kind: Deployment}\n---\n{apiVersion: apps/v1, kind: Deployment}\n")
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o644); err != nil {
		t.Fatal(err)
	}
	f := follow(t, source.Manifests{Path: dir})
	f.next(t)
	f.log.wait(t, "level=ERROR", "bad.yaml")
	f.log.wait(t, "level=ERROR", "pipe.yaml", "not a regular file")
	f.log.wait(t, "level=WARN", "not used", "kind=apps/v1/Deployment", "file="+filepath.Join(dir, "odd.yaml"))
	for _, ip := range []string{"1", "2", "3"} {
		write(t, filepath.Join(dir, "good.yaml"), manifest("good", ip))
		f.expect(t, "10.96.0."+ip)
	}
	equal(t, "log", f.log.rest(), nil)

	write(t, filepath.Join(dir, "good.yaml"), manifest("good", "4")+"  sessionAffinity: Cookie\n")
	f.expect(t, "10.96.0.4")
	f.log.wait(t, "level=WARN", "Service default/good", "Cookie", "file="+filepath.Join(dir, "good.yaml"))
	write(t, filepath.Join(dir, "good.yaml"), manifest("good", "5"))
	f.expect(t, "10.96.0.5")
	write(t, filepath.Join(dir, "good.yaml"), manifest("good", "6")+"  sessionAffinity: Cookie\n")
	f.expect(t, "10.96.0.6")
	f.log.wait(t, "level=WARN", "Service default/good", "Cookie") // gone and back: said again
	equal(t, "log", f.log.rest(), nil)
}

func TestFileBeingWrittenIsNotBroken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.yaml")
	write(t, path, manifest("web", "1"))
	f := follow(t, source.Manifests{Path: path})
	f.expect(t, "10.96.0.1")
	whole := manifest("web", "2")
	write(t, path, whole[:len(whole)/2]+":")
	// The writer's own pace, longer than a change takes to be noticed, shorter than the grace.
	time.Sleep(80 * time.Millisecond)
	write(t, path, whole)
	f.expect(t, "10.96.0.2")
	equal(t, "log", f.log.rest(), nil)
}

func TestEmptiedFileKeepsItsLastGoodState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "web.yaml")
	write(t, path, manifest("web", "1"))
	f := follow(t, source.Manifests{Path: path})
	f.expect(t, "10.96.0.1")
	write(t, path, "")
	f.log.wait(t, "level=ERROR", path, "empty", "delete it")
	f.quiet(t)
	write(t, path, manifest("web", "2"))
	f.expect(t, "10.96.0.2")
	f.log.wait(t, "good again")
}

func TestSingleFileIsFollowedThroughItsFolder(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "services") // a single file may have any name
	write(t, path, manifest("web", "1"))
	write(t, filepath.Join(dir, "other.yaml"), manifest("other", "66"))
	f := follow(t, source.Manifests{Path: path})
	f.expect(t, "10.96.0.1")
	replace(t, path, manifest("web", "2"))
	f.expect(t, "10.96.0.2")
	replace(t, path, manifest("web", "3"))
	f.expect(t, "10.96.0.3")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	f.expect(t)
	write(t, path, manifest("web", "4"))
	f.expect(t, "10.96.0.4")
}

func TestConfigMapVolumeIsSwappedAtOnce(t *testing.T) {
	dir := t.TempDir()
	link := func(to, name string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	version := func(name, ip string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "a.yaml"), manifest("a", ip))
		write(t, filepath.Join(dir, name, "b.yaml"), manifest("b", "1"+ip))
	}
	version("..1", "1")
	link("..1", "..data")
	link("..data/a.yaml", "a.yaml")
	link("..data/b.yaml", "b.yaml")
	folder, file := follow(t, source.Manifests{Path: dir}), follow(t, source.Manifests{Path: filepath.Join(dir, "b.yaml")})
	folder.expect(t, "10.96.0.1", "10.96.0.11")
	file.expect(t, "10.96.0.11")
	for _, v := range []string{"2", "3"} {
		version(".."+v, v)
		link(".."+v, "..data_tmp")
		rename(t, filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
		folder.expect(t, "10.96.0."+v, "10.96.0.1"+v)
		file.expect(t, "10.96.0.1"+v)
	}
}

func TestLinkedFileIsFollowedWhereItLies(t *testing.T) {
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "web")
	write(t, elsewhere, manifest("web", "1"))
	if err := os.Symlink(elsewhere, filepath.Join(dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	f := follow(t, source.Manifests{Path: dir})
	f.expect(t, "10.96.0.1")
	replace(t, elsewhere, manifest("web", "2"))
	f.expect(t, "10.96.0.2")
}

func TestFolderMayBeReplaced(t *testing.T) {
	base := t.TempDir()
	dir, aside := filepath.Join(base, "manifests"), filepath.Join(base, "aside")
	makeFolder := func(path, ip string) {
		t.Helper()
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(path, "web.yaml"), manifest("web", ip))
	}
	makeFolder(dir, "1")
	f := follow(t, source.Manifests{Path: dir})
	f.expect(t, "10.96.0.1")

	rename(t, dir, aside)
	f.log.wait(t, "level=WARN", "cannot read the manifest folder", dir)
	f.quiet(t)
	makeFolder(dir, "2")
	f.expect(t, "10.96.0.2")
	f.log.wait(t, "level=INFO", "is back")
	write(t, filepath.Join(dir, "web.yaml"), manifest("web", "3"))
	f.expect(t, "10.96.0.3")
	equal(t, "log", f.log.rest(), nil)
}

func TestFolderBehindALinkMayBeSwapped(t *testing.T) {
	base := t.TempDir()
	for _, v := range []string{"1", "2"} {
		dir := filepath.Join(base, "v"+v, "manifests")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "web.yaml"), manifest("web", v))
	}
	current := filepath.Join(base, "current")
	if err := os.Symlink("v1", current); err != nil {
		t.Fatal(err)
	}
	f := follow(t, source.Manifests{Path: filepath.Join(current, "manifests")})
	f.expect(t, "10.96.0.1")
	watches := kernelWatches(t)
	if err := os.Symlink("v2", current+".tmp"); err != nil {
		t.Fatal(err)
	}
	rename(t, current+".tmp", current)
	f.expect(t, "10.96.0.2")
	write(t, filepath.Join(base, "v2", "manifests", "web.yaml"), manifest("web", "3"))
	f.expect(t, "10.96.0.3")
	if now := kernelWatches(t); now != watches {
		t.Errorf("%d folders are watched, %d before the swap", now, watches)
	}
}

// kernelWatches counts the inotify watches of this process (proc_pid_fdinfo(5)).
func kernelWatches(t *testing.T) int {
	t.Helper()
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, path := range infos {
		text, _ := os.ReadFile(path) // a descriptor may be closed by now
		count += strings.Count(string(text), "inotify wd:")
	}
	return count
}

func TestConstantWritingHidesNothing(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "web.yaml"), manifest("web", "1"))
	f := follow(t, source.Manifests{Path: dir})
	f.expect(t, "10.96.0.1")
	stop, stopped := make(chan struct{}), make(chan struct{})
	scribble := func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				_ = os.WriteFile(filepath.Join(dir, "noise.yaml"), []byte("# "+time.Now().String()), 0o644)
			}
		}
	}
	go scribble()
	defer func() { close(stop); <-stopped }()
	for _, ip := range []string{"2", "3"} {
		replace(t, filepath.Join(dir, "web.yaml"), manifest("web", ip))
		f.expect(t, "10.96.0."+ip)
	}
}
