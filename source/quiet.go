package source

import (
	"context"
	"log/slog"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// quietLogger returns client-go's logger: log, but with no line above Debug. What
// it has to say of failures, troubles has said better.
func quietLogger(log *slog.Logger) logr.Logger {
	return logr.FromSlogHandler(levelled{log.Handler(), quieter})
}

// quieter is no level above Debug.
func quieter(level slog.Level) slog.Level { return min(level, slog.LevelDebug) }

// levelled gives every line another level.
type levelled struct {
	slog.Handler
	level func(slog.Level) slog.Level
}

// Enabled reports whether a line of that level, once it has another, is wanted.
func (h levelled) Enabled(ctx context.Context, level slog.Level) bool {
	return h.Handler.Enabled(ctx, h.level(level))
}

// Handle passes on a line.
func (h levelled) Handle(ctx context.Context, line slog.Record) error {
	line.Level = h.level(line.Level)
	return h.Handler.Handle(ctx, line)
}

// WithAttrs returns the handler with attributes.
func (h levelled) WithAttrs(attrs []slog.Attr) slog.Handler {
	return levelled{h.Handler.WithAttrs(attrs), h.level}
}

// WithGroup returns the handler with a group.
func (h levelled) WithGroup(name string) slog.Handler {
	return levelled{h.Handler.WithGroup(name), h.level}
}

// RouteClientLogs makes log the place of the lines that client-go writes without being
// told where to, such as those about credentials; they would go to standard error in
// klog's own format. Its warnings and errors become warnings, since it tries again
// whatever fails; all else is at Debug. It holds for the whole process, from the first call on.
func RouteClientLogs(log *slog.Logger) {
	level := func(level slog.Level) slog.Level {
		if level >= slog.LevelWarn {
			return slog.LevelWarn
		}
		return quieter(level)
	}
	routeOnce.Do(func() { klog.SetSlogLogger(slog.New(levelled{log.With("from", "client-go").Handler(), level})) })
}

// routeOnce is because klog's logger must not be set while others log.
var routeOnce sync.Once
