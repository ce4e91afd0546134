package lab

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Ended is what [Down] found and ended.
type Ended struct {
	Lab      bool // there was one, or what a crash had left of it
	Programs int  // that still ran in its namespaces
}

// Down ends the lab that [Up] made, or removes what is left of it after a crash.
// When there is none, that is no error. Programs that run in its namespaces are
// ended first, with SIGTERM and 2 s later SIGKILL: they would keep them alive,
// without a name. It refuses to end the lab from inside.
func Down(ctx context.Context) (Ended, error) {
	dir, err := openStateDir()
	if err != nil {
		return Ended{}, err
	}
	defer dir.close()
	s, err := dir.read()
	if err != nil {
		return Ended{}, err
	}
	if s == nil {
		return Ended{}, dir.remove()
	}
	ended := Ended{Lab: true}
	if ended.Programs, err = s.endPrograms(ctx); err == nil {
		err = s.end(ctx)
	}
	if err == nil {
		err = s.sweep()
	}
	if err != nil {
		return ended, fmt.Errorf("end the lab: %w", err)
	}
	return ended, dir.remove()
}

// end makes the keeper remove its lab, and waits until it is gone.
func (s *state) end(ctx context.Context) error {
	pidfd := s.hold()
	if pidfd < 0 {
		return nil
	}
	defer unix.Close(pidfd)
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := unix.PidfdSendSignal(pidfd, signal, nil, 0); err != nil {
			return fmt.Errorf("signal the keeper, process %d: %w", s.PID, err)
		}
		ended, err := waitEnd(ctx, pidfd, 5*time.Second)
		if ended || err != nil {
			return err
		}
	}
	return fmt.Errorf("process %d, the keeper, does not end", s.PID)
}

// waitEnd waits until the process ends, for as long as patience; it looks at ctx
// ten times a second.
func waitEnd(ctx context.Context, pidfd int, patience time.Duration) (bool, error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 100)
		if n > 0 {
			return true, nil
		}
		if err != nil && err != unix.EINTR {
			return false, fmt.Errorf("wait for the end of a process: %w", err)
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
	return false, nil
}
