package lab

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Down ends the lab that [Up] made, or removes what is left of it after a crash,
// and says whether there was one. When there is none, that is no error.
func Down(ctx context.Context) (bool, error) {
	dir, err := openStateDir()
	if err != nil {
		return false, err
	}
	defer dir.close()
	s, err := dir.read()
	if err != nil {
		return false, err
	}
	if s != nil {
		if err = s.end(ctx); err == nil {
			err = s.sweep()
		}
		if err != nil {
			return true, fmt.Errorf("end the lab: %w", err)
		}
	}
	return s != nil, dir.remove()
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
			return false, fmt.Errorf("wait for the keeper: %w", err)
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
	return false, nil
}
