package service

import (
	"errors"
	"net/netip"
)

// CheckEndpoint returns why addr must never be dialled as an endpoint, or nil.
//
// The proxy dials from the host's own network, where a loopback or link-local
// address is a daemon of the node (or a cloud's metadata server), not a pod. The
// API server has refused such addresses since CVE-2021-25737; manifests and
// older objects have not passed through it.
func CheckEndpoint(addr netip.Addr) error {
	addr = addr.Unmap()
	switch {
	case !addr.IsValid():
		return errors.New("not an address")
	case addr.IsUnspecified():
		return errors.New("the unspecified address")
	case addr.IsLoopback():
		return errors.New("a loopback address")
	case addr.IsLinkLocalUnicast():
		return errors.New("a link-local address")
	case addr.IsMulticast():
		return errors.New("a multicast address")
	case addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return errors.New("the broadcast address")
	}
	return nil
}
