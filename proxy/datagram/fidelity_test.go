package datagram_test

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/proxy/datagram"
)

// families are the ways of each IP family: where to listen, two addresses of the
// machine, and the longest datagram.
var families = map[string]struct {
	listen, endpoint string
	addresses        []string
	longest          int
}{
	"IPv4": {anywhere, "127.0.0.1:0", []string{"127.0.0.1", "10.88.0.11", "10.88.0.12"}, 65507},
	"IPv6": {"::", "[::1]:0", []string{"::1", "fd00:88::11", "fd00:88::12"}, 65527},
}

func TestDatagramsOfEverySizePassWhole(t *testing.T) {
	for name, family := range families {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, family.listen, datagram.Config{}, echo(t, family.endpoint))
			client := dial(t, r.at(family.addresses[0]))
			for _, size := range []int{0, 1, 512, 513, 1472, 1473, 2048, 2049, 4097, 9000, 65507, family.longest} {
				text := make([]byte, size)
				rand.NewChaCha8([32]byte{byte(size)}).Read(text)
				ask(t, client, string(text), string(text))
			}
		})
	}
}

func TestReplyLeavesFromTheAddressTheClientUsed(t *testing.T) {
	for name, family := range families {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, family.listen, datagram.Config{}, echo(t, family.endpoint))
			// One socket for all: each address is a flow. An answer without a source of our
			// choice would leave from the client's own address.
			client := socket(t, net.JoinHostPort(family.addresses[0], "0"))
			for _, address := range family.addresses {
				to := r.at(address)
				_, err := client.WriteToUDP([]byte(address), to)
				check(t, err)
				check(t, client.SetReadDeadline(time.Now().Add(patience)))
				buf := make([]byte, 100)
				n, from, err := client.ReadFromUDP(buf)
				check(t, err)
				if !from.IP.Equal(to.IP) || from.Port != to.Port || string(buf[:n]) != address {
					t.Errorf("asked %v, was answered %q by %v", to, buf[:n], from)
				}
			}
			if n := r.Counts().Flows; n != 3 {
				t.Errorf("%d flows, want one for each address", n)
			}
		})
	}
}

// numbered is a datagram of a client that says which it is, and whether it is whole.
func numbered(random *rand.Rand, number uint64) []byte {
	b := make([]byte, 40+random.IntN(1400))
	binary.BigEndian.PutUint64(b[32:], number)
	sum := sha256.Sum256(b[32:])
	copy(b, sum[:])
	return b
}

// number returns which it is.
func number(b []byte) (uint64, error) {
	if len(b) < 40 {
		return 0, fmt.Errorf("%d bytes are no datagram of ours", len(b))
	}
	if sha256.Sum256(b[32:]) != [32]byte(b) {
		return 0, fmt.Errorf("a datagram of %d bytes is damaged", len(b))
	}
	return binary.BigEndian.Uint64(b[32:]), nil
}

func TestDatagramsStayInOrderAndWholeAt20000ASecond(t *testing.T) {
	const rate, seconds, clients, ahead = 20_000, 2, 4, 300
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	results := make(chan error, clients)
	for range clients {
		client := dial(t, r.at("127.0.0.1"))
		window := make(chan struct{}, ahead) // nobody can take in more than his buffers hold
		go pace(client, rate/clients, rate/clients*seconds, window)
		go func() { results <- inOrder(client, rate/clients*seconds, window) }()
	}
	for range clients {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if traffic := r.listener.Traffic(); !t.Failed() && (traffic.DatagramsUp != rate*seconds || traffic.DatagramsDown != rate*seconds) {
		t.Errorf("%+v, want %d datagrams each way", traffic, rate*seconds)
	}
}

// pace sends count numbered datagrams at a rate.
func pace(c *net.UDPConn, rate, count int, window chan<- struct{}) {
	random := rand.New(rand.NewPCG(1, 2))
	start := time.Now()
	for i := range count {
		if due := start.Add(time.Duration(i) * time.Second / time.Duration(rate)); time.Until(due) > time.Millisecond {
			time.Sleep(time.Until(due))
		}
		window <- struct{}{}
		_, _ = c.Write(numbered(random, uint64(i)))
	}
}

// inOrder reads count datagrams, and expects the first first and so on.
func inOrder(c *net.UDPConn, count int, window <-chan struct{}) error {
	buf := make([]byte, 2000)
	for i := range count {
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		n, err := c.Read(buf)
		if err != nil {
			return fmt.Errorf("after %d datagrams: %w", i, err)
		}
		<-window
		if got, err := number(buf[:n]); err != nil || got != uint64(i) {
			return fmt.Errorf("number %d came as datagram %d (%v)", got, i, err)
		}
	}
	return nil
}

func TestFlowIsCounted(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{}, echo(t, "127.0.0.1:0"))
	client := dial(t, r.at("127.0.0.1"))
	for range 3 {
		ask(t, client, "", "")
		ask(t, client, strings.Repeat("x", 1000), strings.Repeat("x", 1000))
	}
	check(t, r.listener.Close())
	e := r.end()
	if e.client != addrPort(client) || e.Cause != datagram.Removed || e.Up != 3000 || e.Down != 3000 || e.DatagramsUp != 6 || e.DatagramsDown != 6 || e.Duration <= 0 {
		t.Errorf("the flow ended as %+v", e)
	}
	if traffic := r.listener.Traffic(); traffic != (datagram.Traffic{Up: 3000, Down: 3000, DatagramsUp: 6, DatagramsDown: 6}) {
		t.Errorf("the listener counted %+v", traffic)
	}
}
