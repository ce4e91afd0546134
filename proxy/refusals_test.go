package proxy_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/proxy"
	"github.com/kube-splice/kube-splice/service"
)

// Whoever finds a listener's port can send to it with any source.
func TestRefusedClientsOfUDPCannotFillTheLog(t *testing.T) {
	const strangers = 400
	r := newRuledRig(t)
	p := newUDPPort("dns", udpServer(t, "a"))
	opened := r.openRuled(&service.Snapshot{Ports: []*service.Port{p}})
	direct := fmt.Sprintf("10.88.0.11:%d", opened.Bindings[0].Listener.Port())
	var clients []net.Conn
	for range strangers {
		clients = append(clients, udpClient(t, outside, direct))
	}
	for _, c := range clients {
		_, err := c.Write([]byte("?"))
		check(t, err)
	}
	for deadline := time.Now().Add(20 * time.Second); r.Counts().RefusedDirect < strangers; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("counted %+v, want %d refused", r.Counts(), strangers)
		}
	}
	recorded := len(r.records)
	if recorded == 0 || recorded > strangers/2 {
		t.Errorf("%d of %d were recorded", recorded, strangers)
	}
	for range recorded {
		if rec := r.record(); rec.Close != proxy.RefusedDirect {
			t.Errorf("recorded %+v", rec)
		}
	}
	if !strings.Contains(r.log.String(), "unrecorded=") {
		t.Errorf("nothing was said of the others: %s", r.log.String())
	}
}
