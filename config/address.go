package config

import (
	"net"
	"net/netip"
	"strconv"

	netutils "k8s.io/utils/net"
)

// ParseIP reads an IP address as kube-proxy does, leading zeros and all.
func ParseIP(text string) (addr netip.Addr, ok bool) {
	addr, ok = netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	return addr.Unmap(), ok
}

// CompletePorts adds ports to the addresses of the two servers where they have none.
func CompletePorts(c *Configuration, healthz, metrics int) {
	c.HealthzBindAddress = withPort(c.HealthzBindAddress, healthz)
	c.MetricsBindAddress = withPort(c.MetricsBindAddress, metrics)
}

func withPort(address string, port int) string {
	if netutils.ParseIPSloppy(address) == nil {
		return address
	}
	return net.JoinHostPort(address, strconv.Itoa(port))
}
