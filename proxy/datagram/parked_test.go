package datagram_test

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/proxy/datagram"
)

// isRefused sends and reports whether the kernel answers that the port is closed.
func isRefused(t *testing.T, client *net.UDPConn) bool {
	t.Helper()
	send(t, client, "?")
	check(t, client.SetReadDeadline(time.Now().Add(patience)))
	_, err := client.Read(make([]byte, 10))
	return errors.Is(err, unix.ECONNREFUSED)
}

func TestParkedListenerRefusesAndServesAgain(t *testing.T) {
	for name, family := range families {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, family.listen, datagram.Config{}, echo(t, family.endpoint))
			for range 3 {
				check(t, r.listener.Park())
				check(t, r.listener.Park()) // again does nothing
				for _, address := range family.addresses {
					if !isRefused(t, dial(t, r.at(address))) {
						t.Errorf("parked, %s does not refuse", address)
					}
				}
				check(t, r.listener.Unpark())
				check(t, r.listener.Unpark())
				for _, address := range family.addresses {
					ask(t, dial(t, r.at(address)), address, address) // hears nobody but whom it asked
				}
			}
		})
	}
}

func TestFlowsGoOnWhileTheirListenerIsParked(t *testing.T) {
	endpoint := socket(t, "127.0.0.1:0")
	r := newRig(t, anywhere, datagram.Config{}, endpoint)
	client := dial(t, r.at("10.88.0.12"))
	send(t, client, "slow question")
	buf := make([]byte, 100)
	_, flow, err := endpoint.ReadFrom(buf)
	check(t, err)
	check(t, r.listener.Park())
	_, err = endpoint.WriteTo([]byte("late answer"), flow)
	check(t, err)
	want(t, client, "late answer")
	check(t, r.listener.Unpark())
	_, err = endpoint.WriteTo([]byte("later answer"), flow)
	check(t, err)
	want(t, client, "later answer")
}

func TestNobodyTakesAParkedPort(t *testing.T) {
	r := newRig(t, anywhere, datagram.Config{})
	for range 2 { // it was never parked for long, and has been unparked
		check(t, r.listener.Park())
		if c, err := net.ListenUDP("udp4", r.at("0.0.0.0")); err == nil {
			_ = c.Close()
			t.Error("another socket could take the port of a parked listener")
		}
		check(t, r.listener.Unpark())
		if c, err := net.ListenUDP("udp4", r.at("10.88.0.11")); err == nil {
			_ = c.Close()
			t.Error("another socket could take the port of a listener")
		}
	}
}
