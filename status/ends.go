package status

import (
	"sync"
	"time"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
)

// The sinks take microseconds for an event, as much as a tenth of what a connection costs
// altogether. So the ends of connections are counted here, and the counts passed on.
const (
	endsInterval = time.Second
	// mostDials is how many dials an interval the memory and statsd are told of one by one.
	// Prometheus is told of all.
	mostDials = 100
)

// ends are the ends of connections that the sinks do not know of yet.
type ends struct {
	mu     sync.Mutex
	counts map[ending]int
	dials  int
	timer  *time.Timer // nil while there is nothing to pass on
}

// ending is how connections of a Service port ended.
type ending struct {
	name service.Name
	how  proxy.Close
}

// Record says that a connection has ended. It is meant for proxy.Config.Record and
// does not block.
func (m *Metrics) Record(r proxy.Record) {
	outcome := reached
	if r.Close == proxy.DialFailed || r.Close == proxy.NoEndpoints {
		outcome = failed
	}
	dialled := r.Attempts > 0 && r.Name.Protocol != service.UDP // which dials nothing
	if dialled {
		m.prom.dials[outcome].Observe(r.Dial.Seconds())
	}
	if m.ends.add(m, ending{r.Name, r.Close}, dialled) {
		m.observe(dialDuration, r.Dial, string(outcome))
	}
}

// add counts an end, and reports whether the sinks are to be told of its dial.
func (e *ends) add(m *Metrics, one ending, dialled bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.timer == nil {
		e.counts, e.dials = map[ending]int{}, 0
		e.timer = time.AfterFunc(endsInterval, m.passEnds)
	}
	e.counts[one]++
	if dialled {
		e.dials++
	}
	return dialled && e.dials <= mostDials
}

// passEnds passes on what was counted.
func (m *Metrics) passEnds() {
	e := &m.ends
	e.mu.Lock()
	counts := e.counts
	e.counts = nil
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	e.mu.Unlock()
	for one, n := range counts {
		m.count(ended, n, append(serviceValues(one.name), string(one.how))...)
	}
}
