package lab_test

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

func TestStopwatchDoesNotCountABusyMachine(t *testing.T) {
	const busy = time.Second
	watch, until := lab.StartStopwatch(), time.Now().Add(busy)
	var spinning sync.WaitGroup
	for range runtime.NumCPU() {
		spinning.Go(func() {
			for time.Now().Before(until) {
			}
		})
	}
	spinning.Wait()
	if counted := watch.Elapsed(); counted > busy/2 {
		t.Errorf("counted %v of %v in which every processor was busy", counted, busy)
	}
}

func TestStopwatchCountsIdleTime(t *testing.T) {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		started, watch := time.Now(), lab.StartStopwatch()
		time.Sleep(300 * time.Millisecond)
		counted, passed := watch.Elapsed(), time.Since(started)
		if counted > passed {
			t.Fatalf("counted %v of %v", counted, passed)
		}
		if counted > 0 {
			return
		}
	}
	t.Skip("the machine was never idle")
}
