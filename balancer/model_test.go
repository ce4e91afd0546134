package balancer_test

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/service"
)

// modelCap is small enough that a few clients fill the table.
const modelCap = 4

// model is what a Balancer ought to do, written in the plainest way: every
// question is answered by looking at everything. It runs the operations that
// data spells on a Balancer and on itself, inside a synctest bubble, and fails
// the test where they differ.
type model struct {
	t    *testing.T
	b    *balancer.Balancer
	data []byte

	policy   string
	timeout  time.Duration
	eligible [service.Scopes][]int // sorted
	next     [service.Scopes]int   // in rotation; 0 while the place is still random
	active   map[int]int
	open     []openPick
	pins     map[int]pin
	uses     int
	evicted  uint64
}

type openPick struct {
	balancer.Pick
	client, endpoint int
}

type pin struct {
	endpoint int
	at       time.Time
	use      int // orders uses at the same time
}

// runModel spends data as operations.
func runModel(t *testing.T, data []byte) {
	synctest.Test(t, func(t *testing.T) {
		m := &model{
			t: t, data: data, b: balancer.New(balancer.Config{MaxAffinity: modelCap}),
			policy: balancer.Default, active: map[int]int{}, pins: map[int]pin{},
		}
		defer m.b.Close()
		for len(m.data) > 0 {
			m.step()
			m.check()
		}
	})
}

// byte spends one byte of data; 0 when it is spent.
func (m *model) byte() int {
	if len(m.data) == 0 {
		return 0
	}
	b := m.data[0]
	m.data = m.data[1:]
	return int(b)
}

// subset spends one byte as a choice from 1 to 8.
func (m *model) subset() []int {
	var ns []int
	mask := m.byte()
	for _, n := range upTo(8) {
		if mask>>(n-1)&1 == 1 {
			ns = append(ns, n)
		}
	}
	return ns
}

func (m *model) step() {
	switch op := m.byte() % 16; op {
	case 0:
		m.update(m.with(service.Cluster, m.subset()), m.policy, m.timeout)
	case 1:
		m.update(m.with(service.Local, m.subset()), m.policy, m.timeout)
	case 2:
		m.update([service.Scopes][]int{m.subset(), m.subset()}, m.policy, m.timeout)
	case 3:
		m.update(m.eligible, m.policy, time.Duration(m.byte()%4*4)*time.Second)
	case 4:
		m.update(m.eligible, balancer.Names()[m.byte()%5], m.timeout)
	case 5, 6:
		m.pick(service.Cluster, m.byte()%6, nil)
	case 7, 8:
		m.pick(service.Local, m.byte()%6, nil)
	case 9:
		c := m.byte() % 12
		m.pick(service.Scope(c/6), c%6, m.subset())
	case 10, 11, 12:
		m.end(m.byte(), op == 10)
	default:
		time.Sleep(time.Duration(m.byte()) * 50 * time.Millisecond)
		synctest.Wait()
	}
	m.expire()
}

// with returns what is eligible, with other endpoints in one scope.
func (m *model) with(in service.Scope, ns []int) [service.Scopes][]int {
	eligible := m.eligible
	eligible[in] = ns
	return eligible
}

func (m *model) isEligible(n int) bool {
	return slices.ContainsFunc(m.eligible[:], func(ns []int) bool { return slices.Contains(ns, n) })
}

func (m *model) update(eligible [service.Scopes][]int, policy string, timeout time.Duration) {
	m.b.Update(policy, timeout, scoped(eligible[service.Cluster], eligible[service.Local]))
	if policy != m.policy {
		m.next = [service.Scopes]int{}
	}
	m.eligible, m.policy, m.timeout = eligible, policy, timeout
	maps.DeleteFunc(m.pins, func(_ int, p pin) bool { return !m.isEligible(p.endpoint) })
}

func (m *model) pick(in service.Scope, c int, tried []int) {
	var left []int
	for _, n := range m.eligible[in] {
		if !slices.Contains(tried, n) {
			left = append(left, n)
		}
	}
	p, err := m.b.Pick(in, client(c), addrs(tried...))
	if (err != nil) != (len(left) == 0) {
		m.t.Fatalf("Pick: error %v with %v left", err, left)
	}
	if err != nil {
		return
	}
	n := number(p.Endpoint)
	old, sticky := m.pins[c]
	sticky = sticky && slices.Contains(left, old.endpoint)
	switch {
	case p.Sticky != sticky || sticky && n != old.endpoint:
		m.t.Fatalf("client %d went to %d (sticky %v), its pin is %+v", c, n, p.Sticky, old)
	case !slices.Contains(left, n):
		m.t.Fatalf("picked %d, left are %v", n, left)
	case !sticky:
		m.checkPolicy(in, n, left)
	}
	m.active[n]++
	m.open = append(m.open, openPick{p, c, n})
	if m.timeout > 0 {
		m.record(c, n)
	}
}

// record pins c to n, which the policy or its pin chose.
func (m *model) record(c, n int) {
	if _, has := m.pins[c]; !has && len(m.pins) == modelCap {
		oldest := -1
		for c, p := range m.pins {
			if oldest < 0 || p.use < m.pins[oldest].use {
				oldest = c
			}
		}
		delete(m.pins, oldest)
		m.evicted++
	}
	m.uses++
	m.pins[c] = pin{n, time.Now(), m.uses}
}

// checkPolicy checks that the policy could choose n of those left in a scope.
func (m *model) checkPolicy(in service.Scope, n int, left []int) {
	switch m.policy {
	case "round-robin":
		if m.next[in] != 0 {
			if want := atOrAfter(left, m.next[in]); n != want {
				m.t.Fatalf("picked %d of %v, but %d was next", n, left, want)
			}
		}
		m.next[in] = atOrAfter(m.eligible[in], n+1)
	case "least-connections":
		for _, other := range left {
			if m.active[other] < m.active[n] {
				m.t.Fatalf("picked %d of %v, connections are %v", n, left, m.active)
			}
		}
	}
}

// atOrAfter returns the first of ns, sorted, that is n or more, or else ns[0].
func atOrAfter(ns []int, n int) int {
	for _, m := range ns {
		if m >= n {
			return m
		}
	}
	return ns[0]
}

// end ends one of the open connections.
func (m *model) end(which int, failed bool) {
	if len(m.open) == 0 {
		return
	}
	i := which % len(m.open)
	p := m.open[i]
	m.open = slices.Delete(m.open, i, i+1)
	m.active[p.endpoint]--
	if !failed {
		p.Connected(time.Duration(which) * time.Millisecond)
		p.Done()
		return
	}
	p.Failed()
	if m.pins[p.client].endpoint == p.endpoint {
		delete(m.pins, p.client)
	}
}

func (m *model) expire() {
	maps.DeleteFunc(m.pins, func(_ int, p pin) bool { return time.Since(p.at) >= m.timeout })
}

// check compares everything that can be seen from outside.
func (m *model) check() {
	m.t.Helper()
	var want []balancer.EndpointStats
	for _, n := range upTo(8) {
		if eligible := m.isEligible(n); eligible || m.active[n] > 0 {
			want = append(want, balancer.EndpointStats{Addr: addr(n), Eligible: eligible, Active: m.active[n]})
		}
	}
	s := m.b.Stats()
	if !slices.Equal(s.Endpoints, want) {
		m.t.Fatalf("endpoints are %+v, want %+v", s.Endpoints, want)
	}
	if s.AffinityRecords != len(m.pins) || s.AffinityEvicted != m.evicted {
		m.t.Fatalf("%d records, %d evicted; want %d: %+v, and %d", s.AffinityRecords, s.AffinityEvicted, len(m.pins), m.pins, m.evicted)
	}
	if s.Policy != m.policy {
		m.t.Fatalf("policy is %q, want %q", s.Policy, m.policy)
	}
}
