package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/kube-splice/kube-splice/config"
)

const (
	sysctls  = "/proc/sys/net/netfilter/nf_conntrack_"
	hashSize = "/sys/module/nf_conntrack/parameters/hashsize"
	oomScore = "/proc/self/oom_score_adj"
	// mostTracked keeps the table of a machine with many CPUs in bounds, as kube-proxy.
	mostTracked = 1 << 20
)

// applyToKernel sets conntrack's limits and our own oom_score_adj, as kube-proxy does
// when it starts. What is only a default is left alone when this is no node of a
// cluster. What cannot be set is said once.
func (s *settings) applyToKernel(cluster bool, log *slog.Logger) {
	conntrack, score := s.conntrack, s.oomScore
	if cluster {
		conntrack, score = s.config.Conntrack, s.config.OOMScoreAdj
	}
	if err := setConntrack(conntrack, log); err != nil {
		log.Warn("conntrack's limits cannot all be set; going on with the kernel's", "error", oneLine(err))
	}
	if score == nil || s.oomScore == nil && spared() {
		return
	}
	if err := setNumber(oomScore, int(*score), log); err != nil {
		level := slog.LevelInfo
		if s.oomScore != nil { // asked for
			level = slog.LevelWarn
		}
		log.Log(context.Background(), level, "this process's oom_score_adj cannot be set; going on without", "error", err)
	}
}

// spared reports whether the kernel kills nearly everything else first when memory runs
// out. A kubelet sees to that for pods that are critical to the node, by -997, which
// such a pod may not lower further.
func spared() bool {
	score, err := readNumber(oomScore)
	return err == nil && score < -900
}

// runInitOnly does only what takes more than the capabilities that running takes.
func runInitOnly(env environment, o options) error {
	if err := o.validateSettings(); err != nil {
		return err
	}
	c := o.kubeProxy.config
	log := newLog(env.Stderr, c.Logging.Format, int(c.Logging.Verbosity))
	if err := setConntrack(c.Conntrack, log); err != nil {
		return fmt.Errorf("set conntrack's limits (are you root?): %w", err)
	}
	return nil
}

// setConntrack sets the kernel's values as they are given; a zero leaves the
// kernel's. It goes on after an error.
func setConntrack(c config.Conntrack, log *slog.Logger) error {
	var errs []error
	if most := conntrackMax(c, onlineCPUs()); most > 0 {
		errs = append(errs, raiseNumber(sysctls+"max", most, log), raiseNumber(hashSize, most/4, log))
	}
	for _, timeout := range []struct {
		name  string
		value time.Duration
	}{
		{"tcp_timeout_established", config.DurationOf(c.TCPEstablishedTimeout)},
		{"tcp_timeout_close_wait", config.DurationOf(c.TCPCloseWaitTimeout)},
		{"udp_timeout", c.UDPTimeout.Duration},
		{"udp_timeout_stream", c.UDPStreamTimeout.Duration},
	} {
		if timeout.value > 0 {
			seconds := (timeout.value + time.Second - 1) / time.Second // none is 0
			errs = append(errs, setNumber(sysctls+timeout.name, int(seconds), log))
		}
	}
	if c.TCPBeLiberal {
		errs = append(errs, setNumber(sysctls+"tcp_be_liberal", 1, log))
	}
	return errors.Join(errs...)
}

// conntrackMax is how many connections to track, or 0 for as many as now.
func conntrackMax(c config.Conntrack, cpus int) int {
	if c.MaxPerCore == nil || *c.MaxPerCore == 0 {
		return 0
	}
	least := 0
	if c.Min != nil {
		least = int(*c.Min)
	}
	scaled := int(*c.MaxPerCore) * cpus
	if scaled > mostTracked {
		return mostTracked
	}
	return max(scaled, least)
}

// onlineCPUs counts the node's CPUs; the limit is the node's, while the process may
// be held to a part of them.
func onlineCPUs() int {
	text, _ := os.ReadFile("/sys/devices/system/cpu/online") // "0-3,8"
	n := 0
	for part := range strings.SplitSeq(strings.TrimSpace(string(text)), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, errA := strconv.Atoi(first)
		to, errB := strconv.Atoi(last)
		if errA != nil || errB != nil {
			return runtime.NumCPU()
		}
		n += to - from + 1
	}
	return n
}

// raiseNumber writes a number to a file of the kernel that holds a smaller one.
func raiseNumber(path string, n int, log *slog.Logger) error {
	now, err := readNumber(path)
	if err != nil || now >= n {
		return err
	}
	return setNumber(path, n, log)
}

// setNumber writes a number to a file of the kernel that holds another one.
func setNumber(path string, n int, log *slog.Logger) error {
	now, err := readNumber(path)
	if err != nil || now == n {
		return err
	}
	if err := os.WriteFile(path, []byte(strconv.Itoa(n)), 0); err != nil {
		return err
	}
	log.Info("changed a kernel setting", "file", path, "value", n, "was", now)
	return nil
}

func readNumber(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}
