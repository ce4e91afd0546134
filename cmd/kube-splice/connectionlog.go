package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/kube-splice/kube-splice/proxy"
)

// connectionLog is the connection log as the options have it.
type connectionLog struct {
	log    *proxy.ConnectionLog // nil: off
	record func(proxy.Record)   // nil: off
	close  func()
}

// openConnectionLog opens the connection log. While it is open, a hangup makes it open
// its file anew, for the sake of log rotation. The caller closes it.
func openConnectionLog(env environment, o options, hangups <-chan os.Signal, log *slog.Logger) (*connectionLog, error) {
	if o.connectionLog == "off" {
		return &connectionLog{close: func() {}}, nil
	}
	sink := env.Stdout
	ended, end := context.WithCancel(context.Background())
	if o.connectionOut != "" {
		file := &logFile{path: o.connectionOut}
		if err := file.open(); err != nil {
			end()
			return nil, fmt.Errorf("open the connection log (--connection-log-file): %w", err)
		}
		sink = file
		go file.followHangups(ended, hangups, log)
	}
	records := proxy.NewConnectionLog(sink, o.connectionLog == "json", log)
	finish := func() {
		end()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		records.Close(ctx) // the file ends with the program: a write may be stuck in it
	}
	return &connectionLog{log: records, record: records.Record, close: finish}, nil
}

// logFile is a file that can be opened anew while it is written to.
type logFile struct {
	path string

	mu   sync.Mutex
	file *os.File
	cut  bool // the last line is only a part of one
}

// open opens the file, or opens it anew.
func (f *logFile) open() error {
	file, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|access(f.path), 0o640)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file != nil {
		_ = f.file.Close()
	}
	f.file, f.cut = file, false
	return nil
}

func (f *logFile) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut { // the next line must not be spoiled too
		if _, err := f.file.Write([]byte("\n")); err != nil {
			return 0, err
		}
	}
	n, err := f.file.Write(b)
	f.cut = 0 < n && n < len(b)
	return n, err
}

// followHangups is the goroutine that opens the file anew at every signal.
func (f *logFile) followHangups(ctx context.Context, hangups <-chan os.Signal, log *slog.Logger) {
	for {
		select {
		case <-hangups:
			if err := f.open(); err != nil {
				log.Error("cannot open the connection log anew; the old file is written on", "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// access returns how the connection log's file is to be opened. Opening a named
// pipe only for writing would wait until somebody reads it (fifo(7)).
func access(path string) int {
	if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		return os.O_RDWR
	}
	return os.O_WRONLY
}
