package main

import (
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kube-splice/kube-splice/lab"
)

var redirectedTo = regexp.MustCompile(`REDIRECT --to-ports (\d+)`)

// findListener finds, in the rules, the port of the proxy's listener for a Service
// port such as "default/web:http".
func (c *cluster) findListener(service string) (uint16, error) {
	c.t.Helper()
	for _, line := range c.ourRules() {
		if found := redirectedTo.FindStringSubmatch(line); found != nil && strings.Contains(line, `"`+service+`"`) {
			port, err := strconv.ParseUint(found[1], 10, 16)
			return uint16(port), err
		}
	}
	return 0, fmt.Errorf("no rule leads to a listener of %s", service)
}

func (c *cluster) portOfListener(service string) uint16 {
	c.t.Helper()
	port, err := c.findListener(service)
	check(c.t, err)
	return port
}

func TestListenerPortsServeNobodyWhoComesByHimself(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.serveAll("pod-a")
	c.publish(podA)
	p := c.start()
	port := fmt.Sprint(c.portOfListener("default/web:http"))

	hits := []struct {
		from    *lab.Namespace
		address string
	}{
		{c.Outside, net.JoinHostPort(lab.NodeIP, port)},
		{c.client(), net.JoinHostPort("10.244.1.1", port)},
		{c.client(), net.JoinHostPort(lab.NodeSecondIP, port)},
		{c.Node, net.JoinHostPort("127.0.0.1", port)},
		{c.Node, net.JoinHostPort(lab.NodeIP, port)},
	}
	for _, hit := range hits {
		wantNoAnswer(t, hit.from, hit.address)
	}
	asked := map[string]bool{}
	for _, r := range p.finish(len(hits)) { // in any order
		asked[r.Original] = true
		if r.Close != "refused-direct" || r.Backend != "" || r.Attempts != 0 || r.Error == "" {
			t.Errorf("logged %+v, want refused-direct, no backend", r)
		}
	}
	for _, hit := range hits {
		if !asked[hit.address] {
			t.Errorf("nothing is logged of the client that came to %s", hit.address)
		}
	}
	if said := p.said.text(); !strings.Contains(said, fmt.Sprintf(`"not led here"=%d `, len(hits))) {
		t.Errorf("the refused connections are not counted: %s", said)
	}
}
