package source_test

import (
	"strings"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/source"
)

// requestBook takes what a RequestObserver is told.
type requestBook chan string

func (b requestBook) Requested(code, method, host string) {
	b <- strings.Join([]string{code, method, host}, " ")
}

func (b requestBook) RequestTook(verb, host string, took time.Duration) {
	if took > 0 {
		b <- strings.Join([]string{"took", verb, host}, " ")
	}
}

func (b requestBook) await(t *testing.T, texts ...string) {
	t.Helper()
	for late := time.After(20 * time.Second); len(texts) > 0; {
		select {
		case got := <-b:
			if got == texts[0] {
				texts = texts[1:]
			}
		case <-late:
			t.Fatalf("never told of %q", texts)
		}
	}
}

func TestRequestsAreToldToTheirOwnObserver(t *testing.T) {
	t.Parallel()
	var books []requestBook
	var servers []*apiServer
	for range 2 {
		api, book := newAPIServer(t, false), make(requestBook, 1000)
		api.noWatchList = true
		api.put(newService("web", "10.96.0.1"))
		watchAPI(t, source.Kubernetes{Config: api.config(), Requests: book}).first(t, "web=")
		books, servers = append(books, book), append(servers, api)
	}
	host := func(i int) string { return servers[i].server.Listener.Addr().String() }
	books[0].await(t, "422 GET "+host(0), "200 GET "+host(0), "took GET "+host(0))
	servers[0].forbid("list services", true)
	servers[0].compact()
	servers[0].drop()
	books[0].await(t, "403 GET "+host(0))
	at := host(0)
	servers[0].goAway()
	books[0].await(t, "<error> GET "+at)
	for len(books[1]) > 0 {
		if got := <-books[1]; !strings.HasSuffix(got, host(1)) {
			t.Errorf("told of another's request: %s", got)
		}
	}
}
