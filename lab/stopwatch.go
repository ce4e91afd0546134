package lab

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// userHz is how many ticks a second has in /proc/stat (USER_HZ, time(7)).
const userHz = 100

// Stopwatch measures how long a program keeps somebody waiting. It does not count
// time in which the machine had no processor to spare, because then the wait may be
// somebody else's doing: a program that waits for a timer, a lock or a peer leaves
// processors idle. Start it with StartStopwatch.
type Stopwatch struct {
	started time.Time
	idle    time.Duration
}

// StartStopwatch starts a stopwatch.
func StartStopwatch() Stopwatch { return Stopwatch{time.Now(), processorsIdle()} }

// Elapsed returns the time since the start, less what the processors were busy, on
// average. It is exact to some hundredths of a second.
func (s Stopwatch) Elapsed() time.Duration {
	return min(time.Since(s.started), processorsIdle()-s.idle)
}

// processorsIdle returns how long the machine's processors have been idle since it
// started, on average. The first line of /proc/stat has the sums over all, idle in the
// fourth place and idle while waiting for a disk in the fifth (proc_stat(5)).
func processorsIdle() time.Duration {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return time.Duration(time.Now().UnixNano()) // count everything
	}
	var ticks, processors int64
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case fields[0] == "cpu":
			idle, _ := strconv.ParseInt(fields[4], 10, 64)
			disk, _ := strconv.ParseInt(fields[5], 10, 64)
			ticks = idle + disk
		case strings.HasPrefix(fields[0], "cpu"):
			processors++
		}
	}
	return time.Duration(ticks) * time.Second / userHz / time.Duration(max(processors, 1))
}
