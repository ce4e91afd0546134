package status

import (
	"strconv"
	"time"

	"github.com/kube-splice/kube-splice/service"
)

// Queued says that there is something to bring to the data path of a family.
func (m *Metrics) Queued(f service.Family) { m.set(syncQueued, now(), f.String()) }

// Synced says that the rules of a family were written, all of them or those that
// changed, and how long that took.
func (m *Metrics) Synced(f service.Family, all bool, took time.Duration) {
	kind := syncPartial
	if all {
		kind = syncFull
	}
	m.observe(syncDuration, took, f.String())
	m.observe(kind, took, f.String())
}

// InForce says that all that was queued for a family is in force, whether or not that took
// a writing of rules. Alerts compare its time with that of Queued.
func (m *Metrics) InForce(f service.Family) { m.set(syncLast, now(), f.String()) }

// Writer is the way rules are written, as far as failures are counted apart.
type Writer uint8

// The writers. Of iptables, failures to write only the rules that changed are counted
// once more by themselves.
const (
	IPTables Writer = iota
	IPTablesPartial
	NFTables
)

// SyncFailed says that rules of a family could not be written. As in kube-proxy, a failure
// to write the changed rules of iptables is one of iptables too.
func (m *Metrics) SyncFailed(w Writer, f service.Family) {
	if w == IPTablesPartial {
		m.count(restoreFailures, 1, f.String())
	}
	m.count([...]*series{restoreFailures, partialFailures, nftablesFailures}[w], 1, f.String())
}

// Rules says how many rules we have in a table of iptables now, and how many of them
// were written last.
func (m *Metrics) Rules(table string, f service.Family, total, written int) {
	m.set(rulesTotal, float64(total), table, f.String())
	m.set(rulesLast, float64(written), table, f.String())
}

// Programmed says how long after an endpoint changed, as the annotation
// endpoints.kubernetes.io/last-change-trigger-time dates it, that was in force.
func (m *Metrics) Programmed(f service.Family, took time.Duration) {
	m.observe(programming, took, f.String())
}

// ServiceChanges says that n changes of Services were noticed, and how many are not in
// force yet.
func (m *Metrics) ServiceChanges(n, pending int) {
	m.count(serviceChanges, n)
	m.set(servicePending, float64(pending))
}

// EndpointChanges says that n changes of EndpointSlices were noticed, and how many
// are not in force yet.
func (m *Metrics) EndpointChanges(n, pending int) {
	m.count(endpointChanges, n)
	m.set(endpointPending, float64(pending))
}

// NoLocalEndpoints says how many Service ports have a Local traffic policy and endpoints,
// but none on this node; policy is "internal" or "external".
func (m *Metrics) NoLocalEndpoints(policy string, f service.Family, n int) {
	m.set(noLocal, float64(n), policy, f.String())
}

// Requested says that a request to the API server was answered with a status code, or
// not at all with "<error>". The host is the server's host:port.
func (m *Metrics) Requested(code, method, host string) { m.count(requests, 1, code, method, host) }

// RequestTook says how long the API server took to begin an answer.
func (m *Metrics) RequestTook(verb, host string, took time.Duration) {
	m.observe(requestDuration, took, verb, host)
}

// Error says that something of the control path failed. The part of the program is one
// of a few words, such as "source" or "rules"; it becomes a label.
func (m *Metrics) Error(part string) { m.count(errorsTotal, 1, part) }

// answered counts an answer of Health.
func (m *Metrics) answered(counter *series, code int) { m.count(counter, 1, strconv.Itoa(code)) }

// now is a time as Prometheus has it: seconds since 1970.
func now() float64 { return float64(time.Now().UnixNano()) / 1e9 }
