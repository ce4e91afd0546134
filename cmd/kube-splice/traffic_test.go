package main

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

// traffic is a client that asks an address at a steady pace, whatever becomes of
// its earlier requests.
type traffic struct {
	stopped chan struct{}
	asking  sync.WaitGroup

	mu       sync.Mutex
	attempts []attempt
}

// attempt is one request on a connection of its own.
type attempt struct {
	at   time.Time
	took time.Duration // as a lab.Stopwatch measures
	who  string        // the pod that answered
	err  error
}

func (a attempt) String() string {
	return fmt.Sprintf("at %s, after %v: %q %v", a.at.Format("05.000"), a.took, a.who, a.err)
}

// askSteadily starts traffic; stop ends it.
func askSteadily(t testing.TB, from *lab.Namespace, address string, pause time.Duration) *traffic {
	f := &traffic{stopped: make(chan struct{})}
	f.asking.Go(func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			select {
			case <-f.stopped:
				return
			case at := <-tick.C:
				f.asking.Go(func() { f.ask(from, address, at) })
			}
		}
	})
	t.Cleanup(func() { f.stop() })
	return f
}

func (f *traffic) ask(from *lab.Namespace, address string, at time.Time) {
	watch := lab.StartStopwatch()
	who, err := ask(from, address)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attempts = append(f.attempts, attempt{at, watch.Elapsed(), who, err})
}

// stop ends the traffic, if it has not ended yet, and returns all attempts.
func (f *traffic) stop() []attempt {
	select {
	case <-f.stopped:
	default:
		close(f.stopped)
	}
	f.asking.Wait()
	return f.attempts
}
