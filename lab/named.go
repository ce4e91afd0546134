package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// namedDir is where ip-netns(8) looks for namespaces by name.
const namedDir = "/run/netns"

// bind makes the namespace visible to ip-netns(8) as name, until Close.
func (n *Namespace) bind(name string) error {
	if err := os.MkdirAll(namedDir, 0o755); err != nil {
		return fmt.Errorf("name network namespace %s: %w", name, err)
	}
	path := filepath.Join(namedDir, name)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o444)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("name network namespace %s: %s exists already; remove it with: ip netns del %s", name, path, name)
	}
	if err != nil {
		return fmt.Errorf("name network namespace %s: %w", name, err)
	}
	file.Close()
	n.path = path
	self := fmt.Sprintf("/proc/self/fd/%d", n.file.Fd())
	if err := unix.Mount(self, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("name network namespace %s: mount %s: %w", name, path, err)
	}
	return nil
}

// unbind takes a name made by bind away, and the folder when it was the last.
// A name that is gone already is fine. Removing the file also detaches the copies
// of the mount in other mount namespaces, so nothing keeps the namespace alive.
func unbind(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // not, or no longer, a mount point
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the name of a network namespace: %w", err)
	}
	_ = unix.Rmdir(namedDir) // in use by others: stays
	return nil
}
