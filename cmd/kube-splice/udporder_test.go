package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/lab"
)

// numbered is a client that sends datagrams of any size at a steady pace, each with its
// number and a checksum, and looks at what comes back.
type numbered struct {
	net.Conn
	sent, heard int
	fault       error
}

const numberedHeader = 8 // number, checksum of the rest

// sendAll sends so many datagrams at each tick of a millisecond.
func (n *numbered) sendAll(ticks, each int, seed uint64) {
	random, buffer := rand.New(rand.NewPCG(seed, 0)), make([]byte, numberedHeader+1200)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range ticks {
		<-tick.C
		for range each {
			rest := buffer[numberedHeader : numberedHeader+1+random.IntN(1200)]
			for i := range rest {
				rest[i] = byte(random.Uint32())
			}
			n.sent++
			binary.BigEndian.PutUint32(buffer, uint32(n.sent))
			binary.BigEndian.PutUint32(buffer[4:], crc32.ChecksumIEEE(rest))
			_, _ = n.Write(buffer[:numberedHeader+len(rest)]) // what has no room is lost
		}
	}
}

// hearAll takes what comes back until nothing has come for a while.
func (n *numbered) hearAll() {
	buffer, last := make([]byte, 1<<16), uint32(0)
	for {
		_ = n.SetReadDeadline(time.Now().Add(3 * time.Second))
		size, err := n.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err == nil && size <= numberedHeader {
			err = fmt.Errorf("%d bytes came after number %d", size, last)
		}
		if err == nil {
			err = n.look(buffer[:size], last)
		}
		if err != nil {
			n.fault = err
			return
		}
		n.heard++
		last = binary.BigEndian.Uint32(buffer)
	}
}

func (n *numbered) look(datagram []byte, last uint32) error {
	if number := binary.BigEndian.Uint32(datagram); number <= last {
		return fmt.Errorf("number %d came after %d", number, last)
	}
	if crc32.ChecksumIEEE(datagram[numberedHeader:]) != binary.BigEndian.Uint32(datagram[4:]) {
		return fmt.Errorf("a datagram after number %d has other bytes than were sent", last)
	}
	return nil
}

// Ten clients send 20,000 datagrams a second together. A machine that is busy loses
// some, on any way; what arrives is in order and whole.
func TestUDPKeepsOrderAndBytesOfTwentyThousandDatagramsASecond(t *testing.T) {
	t.Parallel()
	const clients, each, ticks = 10, 2, 2000
	c := newCluster(t)
	serveUDP(t, c.Pod("pod-a").Namespace, ":8080", echoUDP)
	c.apply("dns", newService("dns", "10.96.0.53", udp, withIPv6("fd00:10:96::53")),
		newUDPSlice("dns", []string{podA}), newUDPSlice("dns", []string{podA6}, ipv6))
	p := c.start()
	var all []*numbered
	var running sync.WaitGroup
	for i := range clients {
		from := []*lab.Namespace{c.client(), c.Outside, c.Node}[i%3]
		n := &numbered{Conn: udpClient(t, from, []string{udpAddress, "[fd00:10:96::53]:53"}[i%2])}
		all = append(all, n)
		running.Go(func() { n.sendAll(ticks, each, uint64(i)) })
		running.Go(n.hearAll)
	}
	running.Wait()
	sent, heard := 0, 0
	for i, n := range all {
		sent, heard = sent+n.sent, heard+n.heard
		if n.fault != nil || n.heard == 0 {
			t.Errorf("client %d: of %d datagrams %d came back: %v", i, n.sent, n.heard, n.fault)
		}
	}
	t.Logf("of %d datagrams %d came back", sent, heard)
	for _, r := range p.finish(clients) {
		if r.UpCount < r.DownCount {
			t.Errorf("logged %+v: more came back than went", r)
		}
	}
}
