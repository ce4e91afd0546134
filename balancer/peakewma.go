package balancer

import (
	"math"
	"net/netip"
	"time"
)

const (
	// latencyDecay is the time in which an estimate falls to 1/e when nothing
	// renews it; the window of Finagle's balancer of the same name.
	latencyDecay = 10 * time.Second
	// latencyFloor is the least estimate. Dials inside a cluster take tens to
	// hundreds of microseconds and differ by chance; below this the open
	// connections decide.
	latencyFloor = 100 * time.Microsecond
	// failedDial is the latency a failed dial counts as: worse than a good one,
	// for a refusal comes at once and would make a dead endpoint look fast.
	failedDial = time.Second
)

// peakEWMA chooses the endpoint with the least expected wait: its dial latency
// times the connections it would then have. Equal ones take turns.
type peakEWMA struct{ rotation rotation }

func (p *peakEWMA) choose(c candidates, _ netip.Addr) *endpoint {
	now := time.Now()
	return p.rotation.least(c, func(e *endpoint) float64 {
		return e.latency.estimate(now) * float64(e.active+1)
	})
}

// latency estimates the dial latency of an endpoint by an exponentially weighted
// moving average that is pessimistic at once and optimistic with time: a dial
// slower than the estimate replaces it, faster ones pull it down slowly, and
// while there are none it decays towards the floor, so that an endpoint shunned
// for being slow is tried again. The zero value is an endpoint never dialled, at
// the floor.
//
// It is kept whatever the policy, so a change of policy finds it filled.
type latency struct {
	average float64 // nanoseconds
	at      time.Time
}

// estimate returns the expected latency in nanoseconds.
func (l *latency) estimate(now time.Time) float64 {
	return max(float64(latencyFloor), l.average*l.weight(now))
}

// observe takes in the latency of one dial.
func (l *latency) observe(dial time.Duration, now time.Time) {
	weight, d := l.weight(now), float64(dial)
	l.average, l.at = max(d, weight*l.average+(1-weight)*d), now
}

// weight is what the average still counts for at now, 0 to 1.
func (l *latency) weight(now time.Time) float64 {
	return math.Exp(-float64(now.Sub(l.at)) / float64(latencyDecay))
}
