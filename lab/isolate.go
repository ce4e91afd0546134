package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// marker is the environment variable by which a program knows that it is
// isolated. Its value names a mount namespace: "from X" tells a program just
// started that it still has to furnish its own, which is not X; "in X" says that
// X is furnished. So a value that leaked to some other place is not believed.
const marker = "KUBE_SPLICE_ISOLATED"

// Isolate puts the calling program into namespaces of its own, where it cannot
// touch the host's network. It starts the program again, with the same arguments,
// environment, standard streams and signals, in a new network namespace with its
// loopback up and a new mount namespace with a fresh tmpfs on /run (for the lock
// of iptables and for named namespaces). A caller without CAP_SYS_ADMIN and
// CAP_NET_ADMIN also gets a new user namespace (user_namespaces(7)) in which it
// is root.
//
// The outer program never returns from a successful Isolate: it waits for the
// inner one and exits with its status (128 + n when signal n ended it). In the
// inner program Isolate returns nil, as often as it is called. Call it first in
// main or TestMain.
func Isolate() error {
	here, err := mountNamespace()
	if err != nil {
		return fmt.Errorf("isolate: %w", err)
	}
	value := os.Getenv(marker)
	if value == "in "+here {
		return nil
	}
	if from, ok := strings.CutPrefix(value, "from "); ok && from != here {
		if err := furnish(); err != nil {
			return fmt.Errorf("isolate: %w", err)
		}
		return os.Setenv(marker, "in "+here)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = os.Args
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return replaceBy(cmd, here)
}

// mountNamespace identifies the mount namespace of this process.
func mountNamespace() (string, error) {
	id, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return "", fmt.Errorf("find the mount namespace: %w", err)
	}
	return id, nil
}

// replaceBy runs cmd isolated in the place of this program. It returns only when
// cmd could not be started.
func replaceBy(cmd *exec.Cmd, here string) error {
	// The kernel sends the parent-death signal when the starting thread ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	isolated(cmd, here)

	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT,
		syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	if err := cmd.Start(); err != nil {
		signal.Stop(signals)
		return explainStart(err)
	}
	go passOn(signals, cmd.Process)
	_ = cmd.Wait() // the state says more than the error
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		os.Exit(128 + int(status.Signal()))
	}
	os.Exit(status.ExitStatus())
	return nil
}

// isolated arranges that cmd starts in namespaces of its own; here is the mount
// namespace that it leaves.
func isolated(cmd *exec.Cmd, here string) {
	attr := cmd.SysProcAttr
	attr.Cloneflags = syscall.CLONE_NEWNS | syscall.CLONE_NEWNET
	if !privileged() {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	cmd.Env = append(cmd.Environ(), marker+"=from "+here)
}

// privileged says whether this process may make and set up network namespaces
// without a user namespace around them.
func privileged() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return false
	}
	const needed = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN
	return os.Geteuid() == 0 && sets[0].Effective&needed == needed
}

// explainStart says how to mend a refusal to make namespaces.
func explainStart(err error) error {
	const mend = "run as root, or allow user namespaces (sysctl user.max_user_namespaces, " +
		"kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns); " +
		"in a container start it with --privileged"
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSPC),
		errors.Is(err, unix.EUSERS), errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("isolate: make namespaces: %w; CAP_SYS_ADMIN and CAP_NET_ADMIN are missing: %s", err, mend)
	}
	return fmt.Errorf("isolate: start the program again: %w", err)
}

// passOn sends the signals that reach this process to the one that replaces it.
func passOn(signals <-chan os.Signal, to *os.Process) {
	for s := range signals {
		if (s == syscall.SIGINT || s == syscall.SIGQUIT) && inForeground() {
			continue // typed at the terminal, which sent it to both
		}
		_ = to.Signal(s) // fails only when it has ended
	}
}

// inForeground says whether this process is in the foreground group of its
// terminal, which gets the signals of the keyboard (termios(3)).
func inForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// furnish sets up the namespaces in which this process has just been started.
func furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs on /run: %w", err)
	}
	if err := writableSysctls(); err != nil {
		return err
	}
	return raiseLoopback()
}

// writableSysctls undoes the read-only mount that container engines put on
// /proc/sys; the sysctls of a network namespace are the namespace's own.
func writableSysctls() error {
	const path = "/proc/sys"
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil || s.Flags&unix.ST_RDONLY == 0 {
		return err
	}
	err := unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if err != nil {
		return fmt.Errorf("%s is read-only and cannot be made writable: %w; start the container with --privileged", path, err)
	}
	return nil
}

// raiseLoopback brings up lo in the network namespace of the calling thread.
func raiseLoopback() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("raise the loopback: %w", err)
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("raise the loopback: %w", err)
	}
	if err := h.LinkSetUp(lo); err != nil {
		return fmt.Errorf("raise the loopback: %w", err)
	}
	return nil
}
