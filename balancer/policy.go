package balancer

import (
	"net/netip"
	"slices"
)

// policy chooses the endpoint of a connection that affinity did not decide. It
// is called under the Balancer's mutex, with at least one candidate left, and
// returns a candidate that was not tried.
type policy interface {
	choose(c candidates, client netip.Addr) *endpoint
}

// Default is the canonical name of the policy used where none is named.
const Default = "round-robin"

// A namedPolicy is one row of the table of policies.
type namedPolicy struct {
	name    string // canonical
	aliases []string
	create  func() policy
}

// policies are the policies by canonical name, sorted, with the names that the
// IPVS mode of KubeProxyConfiguration used for what comes nearest.
//
// Endpoints have no weights in Kubernetes, so the weighted schedulers are the
// plain ones. It also makes sed and nq least-connections: the shortest expected
// delay is the least (active + 1) / weight, and never-queue prefers an idle
// server to that, which with equal weights has the shortest delay anyway. mh
// (Maglev) and sh (source hashing) both promise what source-hash does.
var policies = []namedPolicy{
	{"least-connections", []string{"lc", "wlc", "sed", "nq"}, func() policy { return new(leastConnections) }},
	{"peak-ewma", nil, func() policy { return new(peakEWMA) }},
	{"random", nil, func() policy { return random{} }},
	{Default, []string{"rr", "wrr"}, func() policy { return new(roundRobin) }},
	{"source-hash", []string{"sh", "mh"}, func() policy { return sourceHash{} }},
}

// Lookup returns the canonical name of the policy that name, canonical or an
// IPVS scheduler's, stands for; the empty name is [Default]. It reports false
// for any other name.
func Lookup(name string) (canonical string, ok bool) {
	p, ok := find(name)
	return p.name, ok
}

// Names returns the canonical names, sorted. The result is the caller's.
func Names() []string {
	names := make([]string, len(policies))
	for i, p := range policies {
		names[i] = p.name
	}
	return names
}

func find(name string) (namedPolicy, bool) {
	if name == "" {
		name = Default
	}
	for _, p := range policies {
		if p.name == name || slices.Contains(p.aliases, name) {
			return p, true
		}
	}
	return namedPolicy{}, false
}
