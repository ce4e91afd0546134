package lab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// state is what "lab up" leaves behind for "lab down": which process keeps the
// lab, and by which names.
type state struct {
	PID     int    `json:"pid"`
	Started uint64 `json:"started"` // clock ticks after boot; tells a PID used again from ours
	Prefix  string `json:"prefix"`
	OwnRun  bool   `json:"ownRun"` // the names are in the keeper's own /run, not in ours
}

// stateDir is the locked folder that holds the state. One user has one lab.
type stateDir struct {
	path string
	lock *os.File
}

const stateFile, logFile = "state.json", "keeper.log"

func stateDirPath() string {
	const name = "kube-splice-lab"
	if os.Geteuid() == 0 {
		return "/run/" + name
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, name)
	}
	return filepath.Join(os.TempDir(), name+"-"+strconv.Itoa(os.Geteuid()))
}

// openStateDir makes the folder if need be and locks it against other commands.
// The caller closes it.
func openStateDir() (*stateDir, error) {
	path := stateDirPath()
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the lab's state folder: %w", err)
	}
	lock, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open the lab's state folder: %w", err)
	}
	if err := claim(lock); err != nil {
		lock.Close()
		return nil, fmt.Errorf("use the lab's state folder %s: %w", path, err)
	}
	return &stateDir{path: path, lock: lock}, nil
}

// claim locks the folder and makes sure that nobody else can write to it: it may be
// in /tmp, where anybody could have made it.
func claim(dir *os.File) error {
	var s unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &s); err != nil {
		return err
	}
	if int(s.Uid) != os.Geteuid() || s.Mode&0o022 != 0 {
		return errors.New("it belongs to, or is writable by, somebody else; remove it")
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.New("another lab command is at work; try again when it has ended")
	}
	return nil
}

func (d *stateDir) close() { d.lock.Close() }

// remove takes the folder away.
func (d *stateDir) remove() error {
	return os.RemoveAll(d.path)
}

// read returns nil when no lab was recorded.
func (d *stateDir) read() (*state, error) {
	path := filepath.Join(d.path, stateFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var s state
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return nil, fmt.Errorf("read the lab's state in %s: %w", path, err)
	}
	return &s, nil
}

// write replaces the record as a whole, so that a crash leaves the old or the new.
func (d *stateDir) write(s *state) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	path := filepath.Join(d.path, stateFile)
	if err = os.WriteFile(path+".new", data, 0o600); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("record the lab's state: %w", err)
	}
	return nil
}

// startOf returns when a process started, in clock ticks after boot (proc_pid_stat(5),
// field 22), or 0 when there is no such process or only its exit status is left.
func startOf(pid int) uint64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The second field, the name in parentheses, may hold anything.
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 20 || bytes.ContainsAny(fields[0], "ZX") {
		return 0
	}
	started, err := strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return 0
	}
	return started
}

// hold returns a pidfd of the keeper, or -1 when it is gone. The caller closes it.
// A pidfd stays with one process: checked once, it can never mean another.
func (s *state) hold() int {
	pidfd, err := unix.PidfdOpen(s.PID, 0)
	if err != nil {
		return -1
	}
	if s.Started == 0 || startOf(s.PID) != s.Started {
		unix.Close(pidfd)
		return -1
	}
	return pidfd
}

// sweep removes the names that a keeper left behind.
func (s *state) sweep() error {
	if s.OwnRun {
		return nil // they went with the keeper's mount namespace
	}
	var errs []error
	for _, m := range plan(Config{}) {
		path := filepath.Join(namedDir, s.Prefix+m.name)
		if _, err := os.Lstat(path); err == nil {
			errs = append(errs, unbind(path))
		}
	}
	return errors.Join(errs...)
}
