package main

import (
	"strings"
	"testing"
	"time"
)

func TestStatsdServerIsSentWhatHappens(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	server, err := c.Node.ListenPacket("udp", "127.0.0.1:0")
	check(t, err)
	defer func() { check(t, server.Close()) }()
	p := c.start("--statsd-address", server.LocalAddr().String())
	wantAnswer(t, c.Outside, "10.96.0.10:80", "pod-a")
	p.records(1)
	want := []string{
		"kubeproxy.sync_full_proxy_rules_duration_seconds.IPv4:",
		"kubeproxy.sync_proxy_rules_service_changes_total:",
		"kubesplice.service_connections_ended_total.",
	}
	var got strings.Builder
	check(t, server.SetReadDeadline(time.Now().Add(patience)))
	for buf := make([]byte, 2000); len(want) > 0; {
		n, _, err := server.ReadFrom(buf)
		if err != nil {
			t.Fatalf("%v: never got %q, only\n%s", err, want[0], &got)
		}
		got.Write(buf[:n])
		if strings.Contains(got.String(), want[0]) {
			want = want[1:]
		}
	}
	p.finish(1)
}
