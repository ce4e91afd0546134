package main

import (
	"context"
	"log/slog"
	"sync"

	"github.com/kube-splice/kube-splice/config"
)

// untilFileChanges returns a context that ends with ctx, or when the configuration
// file changes, so that whoever started us starts us again with the new one. Cancel
// releases it.
func (s *settings) untilFileChanges(ctx context.Context, log *slog.Logger) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if s.file == nil {
		return ctx, cancel
	}
	var watching sync.WaitGroup
	watching.Go(func() {
		if config.AwaitChange(ctx, s.flags.file, s.file.Text) {
			log.Info("the configuration file has changed; ending, to be started again with it", "file", s.flags.file)
			cancel()
		}
	})
	return ctx, func() {
		cancel()
		watching.Wait()
	}
}
