package datagram_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/proxy/datagram"
)

// What a client sends in one call for the kernel to cut is many datagrams for everybody.
func TestSegmentedDatagramsStayDatagrams(t *testing.T) {
	n := newNeighbor(t)
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	for name, client := range map[string]*net.UDPConn{"loopback": dial(t, r.at("127.0.0.1")), "veth": n.dial(r.at("10.77.0.1"))} {
		t.Run(name, func(t *testing.T) {
			whole := make([]byte, 10_500)
			for i := range whole {
				whole[i] = byte(i / 1000)
			}
			_, _, err := client.WriteMsgUDP(whole, segment(1000), nil)
			check(t, err)
			for at := 0; at < len(whole); at += 1000 {
				want(t, client, string(whole[at:min(at+1000, len(whole))]))
			}
		})
	}
}

func segment(size uint16) []byte {
	oob := make([]byte, unix.CmsgSpace(2))
	binary.NativeEndian.PutUint64(oob, uint64(unix.CmsgLen(2)))
	binary.NativeEndian.PutUint32(oob[8:], unix.SOL_UDP)
	binary.NativeEndian.PutUint32(oob[12:], unix.UDP_SEGMENT)
	binary.NativeEndian.PutUint16(oob[16:], size)
	return oob
}

// hold does something while the Loop is held up, so that it finds all of it at once.
func hold(r *rig, do func()) {
	r.t.Helper()
	held, done := make(chan struct{}), make(chan struct{})
	busy, err := r.Listen(netip.MustParseAddrPort("127.0.0.1:30002"), func(datagram.Arrival) (datagram.Route, error) {
		close(held)
		<-done // everybody waits for a Router
		return datagram.Route{}, net.ErrClosed
	})
	check(r.t, err)
	check(r.t, busy.Unpark())
	send(r.t, dial(r.t, net.UDPAddrFromAddrPort(busy.Addr())), "hold on")
	<-held
	do()
	close(done)
	check(r.t, busy.Close())
}

// burst has a client send texts that the Loop will find all at once.
func burst(r *rig, client *net.UDPConn, texts ...string) {
	r.t.Helper()
	hold(r, func() {
		for _, text := range texts {
			send(r.t, client, text)
		}
	})
}

func TestEqualDatagramsOfABurstTravelTogether(t *testing.T) {
	endpoint := socket(t, "127.0.0.1:0")
	control(t, endpoint, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1) })
	r := newRig(t, anywhere, datagram.Config{}, endpoint)
	client := dial(t, r.at("127.0.0.1"))
	a, b, c := strings.Repeat("a", 1200), strings.Repeat("b", 1200), strings.Repeat("c", 100)
	burst(r, client, "first", a, b, c, a, "")
	for _, text := range []string{"first", a + b + c, a, ""} { // a shorter one is a last one
		want(t, endpoint, text)
	}
	if traffic := r.listener.Traffic(); traffic.DatagramsUp != 6 || traffic.Up != 3705 {
		t.Errorf("%+v, want 6 datagrams of 3705 bytes", traffic)
	}
}

// Datagrams longer than a packet cannot be cut from a joined one.
func TestBurstOfLongDatagramsPasses(t *testing.T) {
	n := newNeighbor(t)
	var endpoint *net.UDPConn
	check(t, n.Do(func() (err error) {
		endpoint, err = net.ListenUDP("udp", udpAddr("10.77.0.2:0"))
		return err
	}))
	defer endpoint.Close()
	r := newRig(t, anywhere, datagram.Config{}, endpoint)
	client := dial(t, r.at("127.0.0.1"))
	for range 2 { // the flow has learned of it at the second
		var texts []string
		for i := range 8 {
			texts = append(texts, strings.Repeat(string(rune('a'+i)), 3000))
		}
		burst(r, client, texts...)
		for _, text := range texts {
			want(t, endpoint, text)
		}
	}
	if traffic := r.listener.Traffic(); traffic.DatagramsUp != 16 || traffic.Up != 16*3000 || r.Counts().Unsendable != 0 {
		t.Errorf("%+v and %+v, want 16 datagrams of 3000 bytes", traffic, r.Counts())
	}
}

func TestEmptyDatagramsOfABurstAreNotLost(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	client := dial(t, r.at("127.0.0.1"))
	check(t, client.SetDeadline(time.Now().Add(patience)))
	burst(r, client, "", "", "x", "", "")
	for _, text := range []string{"", "", "x", "", ""} {
		want(t, client, text)
	}
}
