package status_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-splice/kube-splice/status"
)

func say(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
}

func TestServerFreesItsAddressWhenItsContextEnds(t *testing.T) {
	bound := make(chan netip.AddrPort, 1)
	stop := run(t, status.Server{Address: "127.0.0.1:0", Listening: func(a netip.AddrPort) { bound <- a }}, say("hello"))
	address := (<-bound).String()
	if got := get(t, "http://"+address); got.body != "hello" {
		t.Errorf("answered %q", got.body)
	}
	stop()
	wantClosed(t, address)
}

func TestServerAnswersTheRequestOfTheMomentBeforeItEnds(t *testing.T) {
	asked, release, bound := make(chan struct{}), make(chan struct{}), make(chan netip.AddrPort, 1)
	slow := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		<-release
		_, _ = io.WriteString(w, "late")
	})
	stop := run(t, status.Server{Address: "127.0.0.1:0", Listening: func(a netip.AddrPort) { bound <- a }}, slow)
	address := (<-bound).String()
	answers := make(chan answer, 1)
	go func() { answers <- get(t, "http://"+address) }()
	<-asked
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	for { // it takes no new connection any more
		conn, err := net.Dial("tcp", address)
		if err != nil {
			break
		}
		_ = conn.Close()
	}
	select {
	case <-stopped:
		t.Error("it has ended though a request is not answered")
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	if got := <-answers; got.body != "late" {
		t.Errorf("answered %q, want late", got.body)
	}
	<-stopped
}

func TestServerWaitsForATakenAddress(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	log, text := newLog()
	bound := make(chan netip.AddrPort, 1)
	run(t, status.Server{
		Name: "health (--healthz-bind-address)", Address: taken.Addr().String(), Retry: time.Millisecond, Log: log,
		Listening: func(a netip.AddrPort) { bound <- a },
	}, say("hello"))
	<-text.wrote
	check(t, taken.Close())
	if got := get(t, "http://"+(<-bound).String()); got.body != "hello" {
		t.Errorf("answered %q", got.body)
	}
	for _, part := range []string{"health (--healthz-bind-address)", taken.Addr().String(), "address already in use"} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("the log does not say %q: %s", part, text)
		}
	}
}

func TestServerSaysOnceThatItCannotBind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, text := newLog()
		ctx, cancel := context.WithCancel(t.Context())
		ended, told := make(chan error), 0
		go func() {
			ended <- status.Server{Address: "127.0.0.1:99999", Failed: func(error) { told++ }, Log: log}.Run(ctx, say(""))
		}()
		time.Sleep(time.Minute)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("ended with %v, want nil: nobody asked for a hard failure", err)
		}
		if n := text.count("cannot serve"); n != 1 || told != 1 {
			t.Errorf("said %d times and told %d times, want once:\n%s", n, told, text)
		}
	})
}

func TestServerEndsAtOnceOnATakenAddressIfToldSo(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer func() { check(t, taken.Close()) }()
	var failed error
	err = status.Server{
		Name: "metrics", Address: taken.Addr().String(), HardFail: true, Failed: func(err error) { failed = err },
	}.Run(context.Background(), say(""))
	if failed == nil {
		t.Error("nobody was told of the failure")
	}
	if err == nil || !strings.Contains(err.Error(), "serve metrics") || !strings.Contains(err.Error(), "in use") {
		t.Errorf("ended with %v, want what could not be served and why", err)
	}
}
