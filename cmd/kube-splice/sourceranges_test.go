package main

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// admitting gives a Service of type LoadBalancer source ranges.
func admitting(ranges ...string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = ranges }
}

// denied returns an error if a client gets a byte from an address.
func denied(from *lab.Namespace, address string) error {
	conn, err := from.Dial("tcp", address, time.Second)
	if err != nil {
		return nil
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return nil // the reset is told once
	}
	if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
		return errors.New("a client outside the source ranges is answered")
	} else if errors.Is(err, io.EOF) {
		return fmt.Errorf("the connection ends like an answer: %w", err)
	}
	return nil
}

func TestSourceRangesGuardTheLoadBalancerAddresses(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]struct {
		addressing
		none, pods, everybody string
	}{
		"IPv4": {byIPv4, "203.0.113.0/24", "10.244.1.0/24", "0.0.0.0/0"},
		"IPv6": {byIPv6, "2001:db8::/32", "fd00:10:244:1::/64", "::/0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newTwoNodes(t)
			objects := policyCase{internal: inCluster, external: exCluster, endpoints: "local"}.objects(1, f.addressing)
			edit := func(ranges ...string) {
				admitting(ranges...)(objects[0].(*corev1.Service))
				c.apply("policy", objects...)
			}
			edit(f.none)
			p := c.start()
			ways := f.ways(1)
			for _, from := range c.askers() {
				if err := denied(from, ways["load balancer"]); err != nil {
					t.Errorf("from %s: %v", from.Name, err)
				}
				for _, way := range []string{"clusterIP", "externalIP", "nodePort"} { // not guarded
					wantAnswer(t, from, ways[way], localPod)
				}
			}
			if n := countClosed(p.records(12), "denied"); n != 3 {
				t.Errorf("%d connections are logged as denied, want 3", n)
			}
			edit(f.none, f.pods)
			soon(t, c.client(), ways["load balancer"], localPod)
			if err := denied(c.Outside, ways["load balancer"]); err != nil {
				t.Error(err)
			}
			edit(f.everybody)
			soon(t, c.Outside, ways["load balancer"], localPod)
			edit(f.none)
			within(t, time.Second, func() error { return denied(c.Outside, ways["load balancer"]) })
			edit()
			soon(t, c.Outside, ways["load balancer"], localPod)
		})
	}
}

// countClosed counts the connections that ended in one way.
func countClosed(records []record, how string) (n int) {
	for _, r := range records {
		if r.Close == how {
			n++
		}
	}
	return n
}
