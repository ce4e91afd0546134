package redirect

import (
	"net/netip"

	"github.com/kube-splice/kube-splice/service"
)

// Render renders the rules of one family as iptables-save would print them, for
// what cannot be asked of the kernel a million times.
func Render(family service.Family, host netip.Addr, bindings []service.Binding) (lines []string, refused []error) {
	set, refused := renderer{family, host, true, false}.render(bindings)
	var changes []change
	for _, table := range tables {
		changes = append(changes, diff(table, set, nil))
	}
	return input(changes), refused
}

// SavedListeners reads listener ports from what iptables-save printed.
func SavedListeners(text string, family service.Family) map[service.ListenerName]uint16 {
	ports := map[service.ListenerName]uint16{}
	listenerPorts(parseSaved(text), family, ports)
	return ports
}

// SavedDiffers reports whether what iptables-save printed differs from what the
// bindings ask for.
func SavedDiffers(text string, family service.Family, host netip.Addr, bindings []service.Binding) bool {
	set, _ := renderer{family, host, true, false}.render(bindings)
	have := parseSaved(text)
	for _, table := range tables {
		if len(diff(table, set, have[table]).chains) > 0 {
			return true
		}
	}
	return false
}
