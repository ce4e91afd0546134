package source

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-splice/kube-splice/service"
)

// claim is what only one Service port can have.
type claim struct {
	addr     netip.Addr // zero for a nodePort
	family   service.Family
	number   uint16
	protocol service.Protocol
}

// String returns the claim as users know it: "10.96.0.10:80/tcp".
func (c claim) String() string {
	if !c.addr.IsValid() {
		return fmt.Sprintf("%d/%s", c.number, c.protocol)
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(c.addr, c.number), c.protocol)
}

// claims says which Service port has what.
type claims map[claim]service.Name

// settleConflicts gives every address and port to one Service port only: the
// first by name, but a clusterIP goes before any other kind, so that nobody takes
// over a Service by naming its clusterIP as an externalIP. Who loses keeps its
// other portals; without its clusterIP a port cannot be.
//
// An API server prevents most of this; manifests have not passed through one.
// ports must be sorted by name. They are not changed: a loser is a new Port.
func settleConflicts(ports []*service.Port, said *notices) []*service.Port {
	taken := claims{}
	kept := make([]*service.Port, 0, len(ports))
	for _, p := range ports {
		if taken.grant(p, service.ClusterIP, p.ClusterIP, p.Number, said) {
			kept = append(kept, p)
		}
	}
	for i := range kept {
		kept[i] = withAddresses(kept[i], service.LoadBalancer, taken, said)
	}
	for i := range kept {
		kept[i] = withAddresses(kept[i], service.ExternalIP, taken, said)
	}
	for i, p := range kept {
		if p.NodePort != 0 && !taken.grant(p, service.NodePort, netip.Addr{}, p.NodePort, said) {
			loser := *p
			loser.NodePort = 0
			kept[i] = &loser
		}
	}
	return kept
}

// withAddresses returns p with only those addresses of a kind it may have.
func withAddresses(p *service.Port, kind service.Kind, taken claims, said *notices) *service.Port {
	list := func(p *service.Port) *[]netip.Addr {
		if kind == service.LoadBalancer {
			return &p.LoadBalancerIPs
		}
		return &p.ExternalIPs
	}
	granted := slices.DeleteFunc(slices.Clone(*list(p)), func(ip netip.Addr) bool {
		return !taken.grant(p, kind, ip, p.Number, said)
	})
	if len(granted) == len(*list(p)) {
		return p
	}
	loser := *p
	*list(&loser) = granted
	return &loser
}

// grant gives a portal to p unless another Service port has it.
func (taken claims) grant(p *service.Port, kind service.Kind, addr netip.Addr, number uint16, said *notices) bool {
	c := claim{addr, p.Name.Family, number, p.Name.Protocol}
	owner, has := taken[c]
	if !has || owner == p.Name {
		taken[c] = p.Name
		return true
	}
	said.about(reference("Service", p.Name.Namespace, p.Name.Service))(
		"%s %s of %s is already that of %s and is not served: give one of them another", kind, c, p.Name, owner)
	said.because(PortConflict)
	return false
}
