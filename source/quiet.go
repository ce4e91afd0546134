package source

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
)

// quietLogger returns client-go's logger: log, but with no line above Debug. What
// it has to say of failures, troubles has said better.
func quietLogger(log *slog.Logger) logr.Logger {
	return logr.FromSlogHandler(quietHandler{log.Handler()})
}

// quietHandler lowers the level of every line to Debug.
type quietHandler struct{ slog.Handler }

// Enabled reports whether a line of that level, once lowered, is wanted.
func (h quietHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.Handler.Enabled(ctx, min(level, slog.LevelDebug))
}

// Handle passes on a line, lowered.
func (h quietHandler) Handle(ctx context.Context, line slog.Record) error {
	line.Level = min(line.Level, slog.LevelDebug)
	return h.Handler.Handle(ctx, line)
}

// WithAttrs returns the handler with attributes.
func (h quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quietHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup returns the handler with a group.
func (h quietHandler) WithGroup(name string) slog.Handler {
	return quietHandler{h.Handler.WithGroup(name)}
}
