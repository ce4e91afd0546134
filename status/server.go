package status

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// Where kube-proxy answers.
const (
	DefaultHealthAddress  = "0.0.0.0:10256"
	DefaultMetricsAddress = "127.0.0.1:10249"
)

// Server says where and how a handler is served.
type Server struct {
	// Name is what is served, for messages; it does well to name the flag.
	Name string
	// Address is host:port; an IPv4 host means IPv4 only.
	Address string
	// HardFail makes an address that cannot be bound an error of Run, rather than
	// something to try again (kube-proxy's bindAddressHardFail).
	HardFail bool
	// Retry is the pause between two tries to bind; 0 means 5 s, as kube-proxy does.
	Retry time.Duration
	// Listening is told the address each time it is bound. May be nil.
	Listening func(netip.AddrPort)
	// Failed is told why the address cannot be bound, once for each cause. May be nil.
	Failed func(error)
	// Log takes failures; nil discards them.
	Log *slog.Logger
}

// Run serves the handler until ctx ends, and returns when the requests of that
// moment are answered, a second later at most. It returns an error only with
// HardFail; else it says the failure once and tries again.
func (s Server) Run(ctx context.Context, handler http.Handler) error {
	if s.Retry == 0 {
		s.Retry = 5 * time.Second
	}
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	said := ""
	for {
		err := s.serve(ctx, handler)
		if ctx.Err() != nil {
			return nil
		}
		news := err.Error() != said
		said = err.Error()
		if news && s.Failed != nil {
			s.Failed(err)
		}
		switch {
		case s.HardFail:
			return err
		case news:
			s.Log.Error("cannot serve; trying again until the address is free", "every", s.Retry.String(), "error", err)
		}
		select {
		case <-time.After(s.Retry):
		case <-ctx.Done():
			return nil
		}
	}
}

// serve binds and serves once.
func (s Server) serve(ctx context.Context, handler http.Handler) error {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", s.Address)
	if err != nil {
		return fmt.Errorf("serve %s: %w", s.Name, err)
	}
	if s.Listening != nil {
		s.Listening(ln.Addr().(*net.TCPAddr).AddrPort())
	}
	server := newHTTPServer(handler, s.Log)
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(ended); end(server) })
	err = server.Serve(ln)
	if !stop() {
		<-ended
	}
	return fmt.Errorf("serve %s: %w", s.Name, err)
}

// end lets requests finish for a second.
func end(server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		_ = server.Close()
	}
}

// newHTTPServer returns a server that clients who send nothing cannot fill up. There
// is no limit on answering: a profile may take a minute.
func newHTTPServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
