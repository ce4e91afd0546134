package redirect

import (
	"net/netip"
	"strconv"

	"github.com/kube-splice/kube-splice/service"
)

// listenerPorts adds the listener ports that the saved rules of a family lead to.
// Lines that are not ours to understand are passed over. A listener that has two
// ports keeps the first one. One for clients inside may be in the HOST chains only.
func listenerPorts(have saved, family service.Family, ports map[service.ListenerName]uint16) {
	for _, chain := range []string{portalsContainer, nodePortContainer, portalsHost, nodePortHost} {
		for _, line := range have["nat"][chain] {
			name, port, ok := parseRule(line, family)
			if _, known := ports[name]; ok && !known {
				ports[name] = port
			}
		}
	}
}

// parseRule reads the listener's name and port from one of our rules.
func parseRule(line string, family service.Family) (service.ListenerName, uint16, bool) {
	all := words(line)
	proto := service.Protocol(argument(all, "-p"))
	if proto != service.TCP && proto != service.UDP {
		return service.ListenerName{}, 0, false
	}
	name, ok := parseListener(argument(all, "--comment"), proto, family)
	if !ok {
		return service.ListenerName{}, 0, false
	}
	if ports := argument(all, "--to-ports"); ports != "" {
		port, err := strconv.ParseUint(ports, 10, 16)
		return name, uint16(port), err == nil && port != 0
	}
	to, err := netip.ParseAddrPort(argument(all, "--to-destination"))
	return name, to.Port(), err == nil && to.Port() != 0
}
