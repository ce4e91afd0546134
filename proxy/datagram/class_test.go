package datagram_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/proxy/datagram"
)

func TestTrafficClassPassesBothWays(t *testing.T) {
	for name, family := range families {
		t.Run(name, func(t *testing.T) {
			level, class, receiveClass := unix.IPPROTO_IPV6, unix.IPV6_TCLASS, unix.IPV6_RECVTCLASS
			if name == "IPv4" {
				level, class, receiveClass = unix.IPPROTO_IP, unix.IP_TOS, unix.IP_RECVTOS
			}
			endpoint := socket(t, family.endpoint)
			r := newRig(t, family.listen, datagram.Config{}, endpoint)
			client := dial(t, r.at(family.addresses[1]))
			set := func(c *net.UDPConn, name, value int) {
				control(t, c, func(fd int) error { return unix.SetsockoptInt(fd, level, name, value) })
			}
			set(client, receiveClass, 1)
			set(endpoint, receiveClass, 1)
			for _, tos := range []int{0xb8, 0x02, 0} { // EF; ECT(0), which is QUIC's; none
				set(client, class, tos)
				set(endpoint, class, 0xff-3-tos)
				send(t, client, "x")
				got, flow := readClass(t, endpoint)
				if got != tos {
					t.Errorf("sent with class %#x, received with %#x", tos, got)
				}
				_, err := endpoint.WriteToUDPAddrPort([]byte("y"), flow)
				check(t, err)
				if got, _ := readClass(t, client); got != 0xff-3-tos {
					t.Errorf("answered with class %#x, received with %#x", 0xff-3-tos, got)
				}
			}
		})
	}
}

func readClass(t *testing.T, c *net.UDPConn) (int, netip.AddrPort) {
	t.Helper()
	oob := make([]byte, 200)
	check(t, c.SetReadDeadline(time.Now().Add(patience)))
	_, n, _, from, err := c.ReadMsgUDPAddrPort(make([]byte, 10), oob)
	check(t, err)
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	check(t, err)
	for _, m := range messages {
		if m.Header.Type == unix.IP_TOS || m.Header.Type == unix.IPV6_TCLASS {
			return int(m.Data[0]), from
		}
	}
	t.Fatal("no traffic class was received")
	return 0, from
}
