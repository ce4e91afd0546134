package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// grace is how long a program in the lab has to end by itself.
const grace = 2 * time.Second

// inhabitants are the programs in the namespaces of one lab.
type inhabitants struct {
	spaces []*os.File // held open: the kernel gives their numbers to no others
	keeper int
	asked  map[int]bool // to end, by process id; once, for a second time may mean more
}

// endPrograms ends what still runs in the lab's namespaces, first with SIGTERM and
// after some grace with SIGKILL, and returns how many programs that were. They are
// known by their namespace alone, which only this lab's can be in; after a keeper
// without root has crashed there is no telling, and none are ended.
func (s *state) endPrograms(ctx context.Context) (int, error) {
	in := &inhabitants{keeper: s.PID, asked: map[int]bool{}}
	defer in.close()
	if err := in.open(s.names()); err != nil {
		return 0, err
	}
	if in.holds("/proc/self/ns/net") {
		return 0, errors.New("this command runs inside the lab; leave it (exit), then try again")
	}
	started := time.Now()
	found, err := in.end(false)
	for left := found; left > 0 && err == nil; left, err = in.end(time.Since(started) > grace) {
		if time.Since(started) > 2*grace {
			return found, fmt.Errorf("%d programs in the lab do not end", left)
		}
		select {
		case <-ctx.Done():
			return found, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return found, err
}

// names are the paths at which the lab's namespaces can be opened from here; some
// may not exist.
func (s *state) names() []string {
	dir := namedDir
	if s.OwnRun {
		pidfd := s.hold()
		if pidfd < 0 {
			return nil // they went with the keeper's mount namespace
		}
		defer unix.Close(pidfd)
		dir = fmt.Sprintf("/proc/%d/root%s", s.PID, namedDir)
	}
	var paths []string
	for _, m := range plan(Config{}) {
		paths = append(paths, filepath.Join(dir, s.Prefix+m.name))
	}
	return paths
}

func (in *inhabitants) open(paths []string) error {
	for _, path := range paths {
		space, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open a namespace of the lab: %w", err)
		}
		in.spaces = append(in.spaces, space)
	}
	return nil
}

func (in *inhabitants) close() {
	for _, space := range in.spaces {
		space.Close()
	}
}

// holds reports whether path is one of the lab's namespaces.
func (in *inhabitants) holds(path string) bool {
	there, err := os.Stat(path)
	return err == nil && slices.ContainsFunc(in.spaces, func(space *os.File) bool {
		info, err := space.Stat()
		return err == nil && os.SameFile(info, there)
	})
}

// end signals every program in the lab, once with SIGTERM or each time with
// SIGKILL, and returns how many there are.
func (in *inhabitants) end(now bool) (left int, err error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, process := range processes {
		pid, err := strconv.Atoi(filepath.Base(process))
		if err != nil || pid == in.keeper {
			continue
		}
		there, err := in.signal(pid, now)
		if err != nil {
			return 0, fmt.Errorf("end process %d in the lab: %w", pid, err)
		}
		if there {
			left++
		}
	}
	return left, nil
}

// signal is end for one process, and reports whether it is in the lab. The pidfd
// comes before the look: whatever is seen then, no other process gets the signal.
func (in *inhabitants) signal(pid int, now bool) (there bool, err error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false, nil // it has ended
	}
	defer unix.Close(pidfd)
	if !in.holds(fmt.Sprintf("/proc/%d/ns/net", pid)) {
		return false, nil
	}
	switch {
	case now:
		err = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
	case !in.asked[pid]:
		err = unix.PidfdSendSignal(pidfd, unix.SIGTERM, nil, 0)
	}
	in.asked[pid] = true
	if errors.Is(err, unix.ESRCH) {
		err = nil
	}
	return true, err
}
