package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

// predecessorPatience is how long the mark of a program that is just ending is waited
// for. When it was killed while it was starting iptables, the child still holds the
// mark until it gets to execve(2).
const predecessorPatience = 2 * time.Second

// standAlone makes sure that no other kube-splice writes rules for this node: two
// would take them from each other for ever. The mark is a socket with an abstract
// name (unix(7)), which belongs to the network namespace, as the rules do, and is
// gone with its process. The caller closes it before it begins to drain, so that
// its successor can start.
func standAlone(ctx context.Context) (*net.UnixConn, error) {
	ctx, cancel := context.WithTimeout(ctx, predecessorPatience)
	defer cancel()
	for {
		mark, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: "@kube-splice", Net: "unixgram"})
		switch {
		case err == nil:
			return mark, nil
		case !errors.Is(err, syscall.EADDRINUSE):
			return nil, fmt.Errorf("mark this node as served: %w", err)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, errors.New("another kube-splice serves this node already: stop it first")
		}
	}
}
