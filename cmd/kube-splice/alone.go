package main

import (
	"errors"
	"fmt"
	"net"
	"syscall"
)

// standAlone makes sure that no other kube-splice writes rules for this node: two
// would take them from each other for ever. The mark is a socket with an abstract
// name (unix(7)), which belongs to the network namespace, as the rules do, and is
// gone with its process. The caller closes it before it begins to drain, so that
// its successor can start.
func standAlone() (*net.UnixConn, error) {
	mark, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: "@kube-splice", Net: "unixgram"})
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, errors.New("another kube-splice serves this node already: stop it first")
	}
	if err != nil {
		return nil, fmt.Errorf("mark this node as served: %w", err)
	}
	return mark, nil
}
