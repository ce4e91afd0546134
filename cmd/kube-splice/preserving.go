package main

import "github.com/kube-splice/kube-splice/service"

// preserving returns the families of which there is a Service port whose endpoints may see
// the client's own address, sorted.
func preserving(snap *service.Snapshot) (found []service.Family) {
	wanted := map[service.Family]bool{}
	for _, port := range snap.Ports {
		if port.MayPreserve() {
			wanted[port.Name.Family] = true
		}
	}
	for _, family := range families {
		if wanted[family] {
			found = append(found, family)
		}
	}
	return found
}
