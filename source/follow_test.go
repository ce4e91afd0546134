package source_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

// logbook takes a program's log, a line at a time.
type logbook struct{ lines chan string }

func newLogbook() *logbook { return &logbook{lines: make(chan string, 1000)} }

func (l *logbook) Write(line []byte) (int, error) {
	l.lines <- strings.TrimSpace(string(line))
	return len(line), nil
}

// logger returns a logger without times, so that lines can be compared.
func (l *logbook) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// wait expects the next line to contain all texts.
func (l *logbook) wait(t *testing.T, texts ...string) {
	t.Helper()
	select {
	case line := <-l.lines:
		for _, text := range texts {
			if !strings.Contains(line, text) {
				t.Errorf("log line %q does not say %q", line, text)
			}
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("no log line that says %q", texts)
	}
}

// rest returns the lines not read so far.
func (l *logbook) rest() []string {
	var lines []string
	for {
		select {
		case line := <-l.lines:
			lines = append(lines, line)
		default:
			return lines
		}
	}
}

// follower is a running Manifests.
type follower struct {
	snapshots chan *service.Snapshot
	log       *logbook
}

// follow runs m until the end of the test.
func follow(t *testing.T, m source.Manifests) *follower {
	t.Helper()
	f := &follower{snapshots: make(chan *service.Snapshot, 1000), log: newLogbook()}
	m.Log = f.log.logger()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx, func(s *service.Snapshot) { f.snapshots <- s }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return f
}

// live is how soon a change must be in force.
const live = time.Second

// next returns the next Snapshot.
func (f *follower) next(t *testing.T) *service.Snapshot {
	t.Helper()
	watch := lab.StartStopwatch()
	select {
	case s := <-f.snapshots:
		if took := watch.Elapsed(); took > live {
			t.Errorf("the change was live after %v", took)
		}
		return s
	case <-time.After(10 * time.Second):
		t.Fatalf("no Snapshot; log: %q", f.log.rest())
		return nil
	}
}

// expect returns the next Snapshot, which must have these clusterIPs.
func (f *follower) expect(t *testing.T, clusterIPs ...string) *service.Snapshot {
	t.Helper()
	s := f.next(t)
	equal(t, "clusterIPs", clusterIPsOf(s), clusterIPs)
	return s
}

// quiet expects no Snapshot to be waiting.
func (f *follower) quiet(t *testing.T) {
	t.Helper()
	select {
	case s := <-f.snapshots:
		t.Errorf("unexpected Snapshot: %v", clusterIPsOf(s))
	default:
	}
}

func clusterIPsOf(s *service.Snapshot) []string {
	var ips []string
	for _, p := range s.Ports {
		ips = append(ips, p.ClusterIP.String())
	}
	return ips
}

// manifest is a Service of that name at 10.96.0.ip.
func manifest(name, ip string) string {
	return "apiVersion: v1\nkind: Service\nmetadata: {name: " + name + "}\nspec:\n  clusterIP: 10.96.0." + ip + "\n  ports:\n  - port: 80\n"
}

// broken is a manifest with a field that does not exist.
const broken = "# comment\n---\napiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIp: 10.96.0.9}\n"

// write makes a file in place, as a shell redirection does.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// replace makes a file aside and renames it, as careful programs do.
func replace(t *testing.T, path, text string) {
	t.Helper()
	aside := filepath.Join(filepath.Dir(path), ".aside")
	write(t, aside, text)
	rename(t, aside, path)
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// readManifests returns what text on standard input becomes, and the log.
func readManifests(t *testing.T, m source.Manifests, text string) (*service.Snapshot, []string) {
	t.Helper()
	m.Path, m.Stdin = "-", strings.NewReader(text)
	f := follow(t, m)
	return f.next(t), f.log.rest()
}
