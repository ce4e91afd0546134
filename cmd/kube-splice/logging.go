package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/kube-splice/kube-splice/proxy"
)

// newLog returns the program's log.
func newLog(w io.Writer, format string, verbosity int) *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.LevelInfo}
	if verbosity >= 4 {
		options.Level = slog.LevelDebug
	}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// openConnectionLog returns what takes the records of connections, and a function
// that ends it. Both do nothing when the log is off.
func openConnectionLog(env environment, o options, log *slog.Logger) (func(proxy.Record), func(), error) {
	if o.connectionLog == "off" {
		return nil, func() {}, nil
	}
	sink, closeSink := env.Stdout, func() {}
	if o.connectionOut != "" {
		file, err := os.OpenFile(o.connectionOut, os.O_APPEND|os.O_CREATE|access(o.connectionOut), 0o640)
		if err != nil {
			return nil, nil, fmt.Errorf("open the connection log (--connection-log-file): %w", err)
		}
		sink, closeSink = file, func() { _ = file.Close() }
	}
	records := proxy.NewConnectionLog(sink, o.connectionLog == "json", log)
	finish := func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		records.Close(ctx)
		closeSink()
	}
	return records.Record, finish, nil
}

// access returns how the connection log's file is to be opened. Opening a named
// pipe only for writing would wait until somebody reads it (fifo(7)).
func access(path string) int {
	if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		return os.O_RDWR
	}
	return os.O_WRONLY
}
