package redirect

import (
	"net/netip"
	"strconv"

	"github.com/kube-splice/kube-splice/service"
)

// listenerPorts adds the listener ports that the saved rules of a family lead to.
// Lines that are not ours to understand are passed over. A Service port that
// is led to two listeners keeps the first one.
func listenerPorts(have saved, family service.Family, ports map[service.ListenerName]uint16) {
	for _, chain := range []string{portalsContainer, nodePortContainer} {
		for _, line := range have["nat"][chain] {
			its, port, ok := parseRule(line, family)
			name := service.ListenerName{Name: its}
			if _, known := ports[name]; ok && !known {
				ports[name] = port
			}
		}
	}
}

// parseRule reads the Service port and the listener's port from one of our rules.
func parseRule(line string, family service.Family) (service.Name, uint16, bool) {
	all := words(line)
	proto := service.Protocol(argument(all, "-p"))
	if proto != service.TCP && proto != service.UDP {
		return service.Name{}, 0, false
	}
	name, ok := parseName(argument(all, "--comment"), proto, family)
	if !ok {
		return service.Name{}, 0, false
	}
	if ports := argument(all, "--to-ports"); ports != "" {
		port, err := strconv.ParseUint(ports, 10, 16)
		return name, uint16(port), err == nil && port != 0
	}
	to, err := netip.ParseAddrPort(argument(all, "--to-destination"))
	return name, to.Port(), err == nil && to.Port() != 0
}
