package main

import (
	"io"
	"log/slog"
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
