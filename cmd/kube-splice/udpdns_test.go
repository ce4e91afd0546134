package main

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// The names that serveDNS knows.
const (
	smallName = "small.test."
	largeName = "large.test." // its answer has nearly 4 KiB
)

// serveDNS runs a DNS server on a port of both protocols, until the test ends.
func serveDNS(t testing.TB, in *lab.Namespace, address string) {
	t.Helper()
	packets, err := in.ListenPacket("udp", address)
	check(t, err)
	streams, err := in.Listen("tcp", address)
	check(t, err)
	for _, server := range []*dns.Server{{PacketConn: packets}, {Listener: streams}} {
		server.Handler = dns.HandlerFunc(answerDNS)
		started, ended := make(chan struct{}), make(chan error, 1)
		server.NotifyStartedFunc = func() { close(started) }
		go func() { ended <- server.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			check(t, server.Shutdown())
			check(t, <-ended)
		})
	}
}

// answerDNS answers as servers do: what does not fit the client's buffer is left out,
// and the client told so.
func answerDNS(w dns.ResponseWriter, question *dns.Msg) {
	answer := new(dns.Msg).SetReply(question)
	name, texts := question.Question[0].Name, 1
	if name == largeName {
		texts = 18
	}
	for i := range texts {
		answer.Answer = append(answer.Answer, &dns.TXT{
			Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 5},
			Txt: []string{strings.Repeat(fmt.Sprint(i%10), 200)},
		})
	}
	size := dns.MinMsgSize
	if edns := question.IsEdns0(); edns != nil {
		size = int(edns.UDPSize())
		answer.SetEdns0(edns.UDPSize(), false)
	}
	if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
		answer.Truncate(size)
	}
	_ = w.WriteMsg(answer) // a client that has gone
}

// lookUp asks for the texts of a name. With size 0 the client does without EDNS.
func lookUp(from *lab.Namespace, protocol, address, name string, size uint16) (*dns.Msg, error) {
	question := new(dns.Msg).SetQuestion(name, dns.TypeTXT)
	if size > 0 {
		question.SetEdns0(size, false)
	}
	conn, err := from.Dial(protocol, address, patience)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := dns.Client{Net: protocol, Timeout: patience}
	answer, _, err := client.ExchangeWithConn(question, &dns.Conn{Conn: conn, UDPSize: size})
	return answer, err
}

// wantLookedUp demands that an answer comes whole, or truncated and then whole by TCP.
func wantLookedUp(t *testing.T, from *lab.Namespace, address, name string, size uint16, texts int, truncated bool) {
	t.Helper()
	answer, err := lookUp(from, "udp", address, name, size)
	if err == nil && answer.Truncated != truncated {
		t.Errorf("%s at %s with %d bytes: truncated is %v", name, address, size, answer.Truncated)
	}
	if err == nil && answer.Truncated {
		answer, err = lookUp(from, "tcp", address, name, size)
	}
	if err != nil || len(answer.Answer) != texts {
		t.Errorf("from %s, %s at %s with %d bytes: answered %v (%v), want %d texts", from.Name, name, address, size, answer, err, texts)
	}
}

// kubeDNS is a Service of 53/UDP and 53/TCP in both families, with one endpoint.
func (c *cluster) kubeDNS() (addresses []string) {
	c.t.Helper()
	serveDNS(c.t, c.Pod("pod-a").Namespace, ":8080")
	c.apply("dns", newService("dns", "10.96.0.53", dnsPorts(corev1.ProtocolUDP, corev1.ProtocolTCP), withIPv6("fd00:10:96::53")),
		newSlice("dns", []string{podA}, dnsSlice), newSlice("dns", []string{podA6}, dnsSlice, ipv6))
	return []string{
		udpAddress, "172.20.1.2:30053", "172.20.1.5:30053",
		"[fd00:10:96::53]:53", "[fd00:172:20:1::2]:30053", "[fd00:172:20:1::5]:30053",
	}
}

func TestDNSIsAnsweredOverUDPAndOverTCPWhereItIsTooLong(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	addresses := c.kubeDNS()
	c.start()
	for _, from := range []*lab.Namespace{c.client(), c.Node, c.Outside, c.Pod("pod-a").Namespace} {
		for _, address := range addresses {
			wantLookedUp(t, from, address, smallName, 0, 1, false)
			wantLookedUp(t, from, address, largeName, 4096, 18, false)
			wantLookedUp(t, from, address, largeName, 1232, 18, true)
			wantLookedUp(t, from, address, largeName, 0, 18, true)
		}
	}
}

// A resolver that asks several servers by one socket tells their answers apart by where
// they come from.
func TestDNSAnswersComeFromTheAddressAsked(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	addresses := c.kubeDNS()
	c.start()
	for _, from := range []*lab.Namespace{c.client(), c.Node, c.Outside} {
		conn, err := from.ListenPacket("udp", ":0")
		check(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		asked := map[uint16]string{}
		for _, address := range addresses {
			question := new(dns.Msg).SetQuestion(smallName, dns.TypeTXT)
			asked[question.Id] = address
			text, err := question.Pack()
			check(t, err)
			to, err := net.ResolveUDPAddr("udp", address)
			check(t, err)
			_, err = conn.WriteTo(text, to)
			check(t, err)
		}
		for range addresses {
			check(t, conn.SetReadDeadline(time.Now().Add(patience)))
			buffer := make([]byte, 1<<16)
			n, by, err := conn.ReadFrom(buffer)
			check(t, err)
			var answer dns.Msg
			check(t, answer.Unpack(buffer[:n]))
			if asked[answer.Id] != by.String() {
				t.Errorf("from %s, %s is answered by %v", from.Name, asked[answer.Id], by)
			}
			delete(asked, answer.Id)
		}
	}
}
