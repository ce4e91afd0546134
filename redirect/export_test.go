package redirect

import (
	"net/netip"

	"github.com/kube-splice/kube-splice/service"
)

// Render renders the rules of one family as iptables-save would print them, for
// what cannot be asked of the kernel a million times.
func Render(family service.Family, host netip.Addr, want Rules) (lines []string, refused []error) {
	set, refused := renderFor(family, host, want)
	var changes []change
	for _, table := range tables {
		changes = append(changes, diff(table, set, nil))
	}
	return input(changes), refused
}

func renderFor(family service.Family, host netip.Addr, want Rules) (ruleset, []error) {
	r := renderer{family: family, host: host, pods: want.Pods.sources(family)}
	return r.render(want.Bindings)
}

// SavedListeners reads listener ports from what iptables-save printed.
func SavedListeners(text string, family service.Family) map[service.ListenerName]uint16 {
	ports := map[service.ListenerName]uint16{}
	listenerPorts(parseSaved(text), family, ports)
	return ports
}

// SavedDiffers reports whether what iptables-save printed differs from what the
// rules ask for.
func SavedDiffers(text string, family service.Family, host netip.Addr, want Rules) bool {
	set, _ := renderFor(family, host, want)
	have := parseSaved(text)
	for _, table := range tables {
		if c := diff(table, set, have[table]); len(c.chains)+len(c.rules) > 0 {
			return true
		}
	}
	return false
}
