package proxy_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
)

// BenchmarkOpenAfterOneChange opens a Snapshot of a thousand Service ports of which one
// has another endpoint than before.
func BenchmarkOpenAfterOneChange(b *testing.B) {
	const count = 1000
	p := proxy.New(proxy.Config{Direct: true})
	defer p.Shutdown(b.Context())
	ports := make([]*service.Port, count)
	for i := range ports {
		ports[i] = newPort(fmt.Sprintf("web-%04d", i), "10.88.0.11:80")
		ports[i].ClusterIP = netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
	}
	other := *ports[0]
	other.Endpoints = newPort("web-0000", "10.88.0.12:80").Endpoints
	both := []*service.Port{ports[0], &other}
	p.Open(&service.Snapshot{Ports: ports})
	for i := 0; b.Loop(); i++ {
		ports[0] = both[i%2]
		p.Open(&service.Snapshot{Ports: ports})
	}
}
