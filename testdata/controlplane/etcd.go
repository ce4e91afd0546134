package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

// longestSocketPath is what sun_path of sockaddr_un holds besides its final zero
// byte (unix(7)).
const longestSocketPath = 107

// etcd is a store of one member that clients reach over a socket in its folder,
// so that several can run beside each other.
type etcd struct {
	member   *embed.Etcd
	endpoint string // for --etcd-servers
}

// startEtcd opens the store in dir, and returns when it serves. fail is told if
// it ends by itself later. The caller closes it.
func startEtcd(ctx context.Context, fail context.CancelCauseFunc, dir string) (*etcd, error) {
	socket := filepath.Join(dir, "client.sock")
	if len(socket) > longestSocketPath {
		return nil, fmt.Errorf("socket path %s has %d bytes, more than %d; choose a shorter -dir", socket, len(socket), longestSocketPath)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the data folder: %w", err)
	}
	// The log is preallocated in segments of this size: 64 MB each is much for
	// a test's few objects.
	wal.SegmentSizeBytes = 8 << 20

	c := embed.NewConfig()
	c.Dir = filepath.Join(dir, "data")
	c.ListenClientUrls = []url.URL{{Scheme: "unix", Path: socket}}
	// Nobody uses this one, but etcd insists on advertising a host and port.
	c.AdvertiseClientUrls = []url.URL{{Scheme: "http", Host: "127.0.0.111:0"}}
	c.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	c.UnsafeNoFsync = true
	c.LogLevel = "fatal" // at "error" every orderly end prints three complaints
	member, err := embed.StartEtcd(c)
	if err != nil {
		return nil, err
	}
	store := &etcd{member, "unix://" + socket}
	select {
	case <-member.Server.ReadyNotify():
		go store.watch(fail)
		return store, nil
	case err := <-member.Err():
		store.close()
		return nil, err
	case <-ctx.Done():
		store.close()
		return nil, context.Cause(ctx)
	}
}

// watch tells fail when the member ends. In an orderly end that comes too late to
// count: the context has its cause by then.
func (e *etcd) watch(fail context.CancelCauseFunc) {
	select {
	case err, open := <-e.member.Err():
		if open {
			fail(fmt.Errorf("serve etcd: %w", err))
		}
	case <-e.member.Server.StopNotify():
		fail(errors.New("etcd stopped by itself"))
	}
}

func (e *etcd) close() {
	e.member.Close()
}
