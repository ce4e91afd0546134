package source_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

// waitFor returns when what was asked, and complains if it is not.
func waitFor(t *testing.T, asked <-chan string, what string) {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		select {
		case got := <-asked:
			if got == what {
				return
			}
		case <-late:
			t.Fatalf("the API server was not asked to %s", what)
		}
	}
}

func TestLastStateStaysInForceWhileTheAPIServerIsAway(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t, false)
	gone := newService("gone", "10.96.0.9")
	api.put(newService("web", "10.96.0.1"), newSlice("web", "web-a", []string{"10.244.1.1"}), gone, newService("dns", "10.96.0.2"))
	f := watchAPI(t, source.Kubernetes{Config: api.config()})
	before := f.first(t, "dns= gone= web=10.244.1.1")
	api.goAway()
	f.log.wait(t, "level=WARN", "cannot reach the API server", "connection refused")
	api.remove(gone)
	api.put(newSlice("web", "web-a", []string{"10.244.1.2"}))
	f.quiet(t)
	api.comeBack(t)
	after := f.until(t, "dns= web=10.244.1.2")
	if before.Ports[0] != after.Ports[0] {
		t.Error("the port that did not change lost its pointer")
	}
	f.log.wait(t, "level=INFO", "reading from the API server again")
	if lines := f.log.rest(); len(lines) > 0 {
		t.Errorf("log: %q", lines)
	}
}

func TestWhatWasMissedIsListedAfterAnExpiredVersion(t *testing.T) {
	t.Parallel()
	for name, withoutWatchList := range map[string]bool{"watch list": false, "list, then watch": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := newAPIServer(t, false)
			api.noWatchList = withoutWatchList
			gone := newService("gone", "10.96.0.9")
			api.put(newService("web", "10.96.0.1"), newSlice("web", "web-a", []string{"10.244.1.1"}), gone, newSlice("gone", "gone-a", []string{"10.244.1.9"}))
			f := watchAPI(t, source.Kubernetes{Config: api.config()})
			before := f.first(t, "gone=10.244.1.9 web=10.244.1.1")
			api.goAway()
			api.remove(gone, newSlice("gone", "gone-a", nil))
			api.put(newService("new", "10.96.0.3"))
			api.compact()
			api.comeBack(t)
			after := f.until(t, "new= web=10.244.1.1")
			if before.Ports[1] != after.Ports[1] {
				t.Error("the port that did not change lost its pointer")
			}
			api.put(newSlice("web", "web-a", []string{"10.244.1.2"}))
			f.until(t, "new= web=10.244.1.2")
		})
	}
}

func TestAPIServerThatIsAwayAtFirstIsSaidOnce(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t, false)
	api.put(newService("web", "10.96.0.1"), newNode("192.0.2.1"))
	config := api.config()
	api.goAway()
	f := watchAPI(t, source.Kubernetes{Config: config, NodeName: "n1"})
	f.log.wait(t, "level=WARN", "cannot reach the API server")
	time.Sleep(100 * time.Millisecond) // so that all three resources were tried in vain
	api.comeBack(t)
	f.first(t, "web=")
	f.log.wait(t, "level=INFO", "reading from the API server again")
	if lines := f.log.rest(); len(lines) > 0 {
		t.Errorf("log: %q", lines)
	}
}

func TestBrokenConnectionsAreTakenUpAgain(t *testing.T) {
	t.Parallel()
	api := newAPIServer(t, true)
	api.put(newService("web", "10.96.0.1"), newSlice("web", "web-a", []string{"10.244.1.1"}))
	log := newLogbook()
	debug := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	f := watchAPI(t, source.Kubernetes{Config: api.config(), Log: debug})
	f.first(t, "web=10.244.1.1")
	api.drop()
	api.put(newSlice("web", "web-a", []string{"10.244.1.2"}))
	f.first(t, "web=10.244.1.2")
	lines := log.rest()
	if len(lines) == 0 {
		t.Error("client-go says nothing at Debug")
	}
	for _, line := range lines {
		if !strings.Contains(line, "level=DEBUG") {
			t.Errorf("log: %q", line)
		}
	}
}

func TestForbiddenResourceIsSaidInOneLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name             string
		withoutWatchList bool
		forbidden        []string
		says             string
	}{
		{"watch list", false, []string{"list", "watch"}, "verb=list"},
		{"list, then watch", true, []string{"list", "watch"}, "verb=list"},
		{"watch alone", true, []string{"watch"}, "verb=watch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			api := newAPIServer(t, false)
			api.noWatchList = c.withoutWatchList
			asked := make(chan string, 1000)
			api.asked = func(what string, _ *http.Request) { asked <- what }
			api.put(newService("web", "10.96.0.1"))
			for _, verb := range c.forbidden {
				api.forbid(verb+" endpointslices", true)
			}
			f := watchAPI(t, source.Kubernetes{Config: api.config()})
			f.log.wait(t, "level=WARN", "forbids", c.says, "resource=endpointslices.discovery.k8s.io")
			for range 3 {
				waitFor(t, asked, "list endpointslices")
			}
			if lines := f.log.rest(); len(lines) > 0 {
				t.Errorf("said again: %q", lines)
			}
			for _, verb := range c.forbidden {
				api.forbid(verb+" endpointslices", false)
			}
			api.put(newSlice("web", "web-a", []string{"10.244.1.1"}))
			f.until(t, "web=10.244.1.1")
			f.log.wait(t, "level=INFO", "reading from the API server again")
			if lines := f.log.rest(); len(lines) > 0 {
				t.Errorf("log: %q", lines)
			}
		})
	}
}

func TestRunEndsWithItsContextWhileTheAPIServerIsAway(t *testing.T) {
	api := newAPIServer(t, false)
	config := api.config()
	api.goAway()
	log := newLogbook()
	k := source.Kubernetes{Config: config, Log: log.logger(), NodeName: "n1"}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx, func(*service.Snapshot) { t.Error("published") }) }()
	log.wait(t, "cannot reach the API server")
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(400 * time.Millisecond): // a first wait in the backoff takes twice that
		t.Error("Run waited for the API server")
		<-ended
	}
}

func TestNothingOutlivesRun(t *testing.T) {
	api := newAPIServer(t, true)
	k := source.Kubernetes{Config: api.config(), NodeName: "n1", NodeWait: time.Nanosecond, Log: newLogbook().logger()}
	ctx, cancel := context.WithCancel(context.Background())
	if err := k.Run(ctx, func(*service.Snapshot) { cancel() }); err != nil {
		t.Fatal(err)
	}
	stacks := make([]byte, 1<<20)
	if stacks = stacks[:runtime.Stack(stacks, true)]; strings.Contains(string(stacks), "client-go/tools/cache") {
		t.Errorf("a reflector still runs:\n%s", stacks)
	}
	closed := make(chan struct{})
	go func() {
		api.conns.Wait()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Error("the connection was not closed")
	}
}

// relay leads connections to an API server and can make them lose all that is sent.
type relay struct {
	listener net.Listener
	to       string
	mu       sync.Mutex
	conns    []net.Conn
	dead     map[net.Conn]bool
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: listener, to: to, dead: map[net.Conn]bool{}}
	go r.accept()
	t.Cleanup(func() {
		_ = listener.Close()
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, c := range r.conns {
			_ = c.Close()
		}
	})
	return r
}

func (r *relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", r.to)
		if err != nil {
			_ = client.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, client, server)
		r.mu.Unlock()
		go r.copy(client, server)
		go r.copy(server, client)
	}
}

// deaden makes the connections there are lose all that is sent from now on.
func (r *relay) deaden() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		r.dead[c] = true
	}
}

func (r *relay) isDead(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dead[c]
}

// copy passes on what comes, and the end, unless the connection is dead.
func (r *relay) copy(to, from net.Conn) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if !r.isDead(from) && n > 0 {
			_, _ = to.Write(buffer[:n])
		}
		if err != nil && !r.isDead(from) {
			_ = to.Close()
		}
		if err != nil {
			return
		}
	}
}

func TestConnectionThatDiedSilentlyIsReplaced(t *testing.T) {
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "1")
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "1")
	api := newAPIServer(t, true)
	between := newRelay(t, strings.TrimPrefix(api.server.URL, "https://"))
	config := api.config()
	config.Host = "https://" + between.listener.Addr().String()
	api.put(newService("web", "10.96.0.1"), newSlice("web", "web-a", []string{"10.244.1.1"}))
	f := watchAPI(t, source.Kubernetes{Config: config})
	f.first(t, "web=10.244.1.1")
	between.deaden()
	api.put(newSlice("web", "web-a", []string{"10.244.1.2"}))
	watch := lab.StartStopwatch()
	f.first(t, "web=10.244.1.2")
	if took := watch.Elapsed(); took > 2*time.Second+3*time.Second {
		t.Errorf("it took %v; the pings allow 2 s, and the first wait before another try 1.6 s", took)
	}
}
