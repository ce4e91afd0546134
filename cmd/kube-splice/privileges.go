package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// raisePrivileges puts every capability into effect that this process may have, and
// hands them on to the programs it starts. Root has that anyway. Another user has
// capabilities from the program's file, which the kernel hands on to no child, or
// ambient ones; without any this does nothing.
func raisePrivileges(log *slog.Logger) {
	if os.Geteuid() == 0 {
		return
	}
	if err := holdInAllSets(permitted()); err != nil {
		log.Warn("capabilities cannot all be put to use; going on with fewer", "error", oneLine(err))
	}
}

// dropPrivileges gives up, in every thread and for good, all that the running program
// has no use for, so that whoever gets hold of it, or of a program it starts, gets no
// more. What cannot be dropped is said once, and the program goes on.
//
// The first writing of rules removes old ones from legacy iptables, also where nft's is
// in use. What only legacy iptables takes is then dropped by the returned function, to be
// called after that.
func dropPrivileges(o options, in *redirection, log *slog.Logger) (ready func()) {
	lasting := o.neededPrivileges(in)
	files, err := o.forFiles(lasting)
	lasting = append(lasting, files...)
	first := lasting
	if in.rules != nil {
		first = append(slices.Clone(lasting), forLegacy()...)
	}
	if keepOnly(first, err, log) != nil || !in.nft {
		return func() {}
	}
	return func() { _ = keepOnly(lasting, nil, log) }
}

// forLegacy are the capabilities that the legacy iptables programs take besides: they
// speak through a raw socket, by which packets can be read and forged too, and read
// files of root's, the lock and the list of tables.
func forLegacy() []cap.Value {
	if os.Geteuid() == 0 {
		return []cap.Value{cap.NET_RAW}
	}
	return []cap.Value{cap.NET_RAW, cap.DAC_READ_SEARCH}
}

// neededPrivileges are the capabilities that opening sockets and writing nft's rules
// take.
func (o *options) neededPrivileges(in *redirection) []cap.Value {
	if in.rules != nil {
		return []cap.Value{
			cap.NET_ADMIN,        // rules, routes, marks of our own sockets (SO_MARK), IP_TRANSPARENT, conntrack, big socket buffers
			cap.NET_BIND_SERVICE, // portals and health checks below 1024 may come at any time
		}
	}
	c := o.kubeProxy.config
	ports := []uint16{o.ports.First, portOf(c.HealthzBindAddress), portOf(c.MetricsBindAddress)}
	if slices.ContainsFunc(ports, func(p uint16) bool { return 0 < p && p < 1024 }) {
		return []cap.Value{cap.NET_BIND_SERVICE}
	}
	return nil
}

func portOf(address string) uint16 {
	_, port, _ := net.SplitHostPort(address)
	n, _ := strconv.ParseUint(port, 10, 16) // none: no such server
	return uint16(n)
}

// keepOnly keeps only the given capabilities, of those that this process has. It
// returns what it said of this, and of the error before it.
func keepOnly(kept []cap.Value, before error, log *slog.Logger) error {
	err := errors.Join(before, holdAtMost(kept))
	if err != nil {
		log.Warn("privileges cannot be reduced to those needed; going on with what there is", "error", oneLine(err))
	}
	log.Debug("privileges dropped", "kept", fmt.Sprint(permitted()))
	return err
}

// forFiles are the capabilities that files take which belong to somebody else, such as
// the manifests in a user's home that root is to serve: they are read, and the
// connection log is opened, again and again.
func (o *options) forFiles(needed []cap.Value) (more []cap.Value, err error) {
	if err := setEffective(needed); err != nil {
		return nil, err
	}
	read := []string{o.kubeProxy.config.ClientConnection.Kubeconfig, o.kubeProxy.flags.file}
	if o.manifests != "-" {
		read = append(read, o.manifests)
	}
	if slices.ContainsFunc(read, closedForReading) {
		more = append(more, cap.DAC_READ_SEARCH)
	}
	if out := o.connectionOut; out != "" && (closed(out, unix.W_OK) || closed(filepath.Dir(out), unix.W_OK)) {
		more = append(more, cap.DAC_OVERRIDE)
	}
	return more, nil
}

// closedForReading reports whether this process may not read a file, or a folder and
// what is in it now.
func closedForReading(path string) bool {
	names := []string{path}
	entries, err := os.ReadDir(path) // a file has none
	for _, entry := range entries {
		names = append(names, filepath.Join(path, entry.Name()))
	}
	return errors.Is(err, fs.ErrPermission) || slices.ContainsFunc(names, func(name string) bool { return closed(name, unix.R_OK) })
}

func closed(path string, mode uint32) bool {
	return unix.Faccessat(unix.AT_FDCWD, path, mode, unix.AT_EACCESS) == unix.EACCES
}
