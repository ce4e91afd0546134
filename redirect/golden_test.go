package redirect_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-splice/kube-splice/redirect"
	"github.com/kube-splice/kube-splice/service"
)

// every is one Service port of each kind of portal, protocol and family.
func every() redirect.Rules {
	return rules(
		binding("shop/web:http", service.TCP, service.ClusterIP, "10.96.0.10", 80, 40001),
		binding("shop/web:http", service.TCP, service.LoadBalancer, "198.51.100.1", 80, 40001),
		binding("shop/web:http", service.TCP, service.ExternalIP, "203.0.113.9", 80, 40001),
		binding("shop/web:http", service.TCP, service.NodePort, "", 30080, 40001),
		binding("kube-system/dns:udp", service.UDP, service.ClusterIP, "10.96.0.53", 53, 40002),
		binding("kube-system/dns:tcp", service.TCP, service.ClusterIP, "10.96.0.53", 53, 40003),
		binding("kube-system/dns:udp", service.UDP, service.NodePort, "", 30053, 40002),
		binding("default/plain", service.TCP, service.ClusterIP, "10.96.0.9", 8080, 40004),
		binding("shop/web:http", service.TCP, service.ClusterIP, "fd00:10:96::10", 80, 40005),
		binding("shop/web:http", service.TCP, service.LoadBalancer, "2001:db8:1::1", 80, 40005),
		binding("shop/web:http", service.TCP, service.ExternalIP, "2001:db8:2::9", 80, 40005),
		inIPv6(binding("shop/web:http", service.TCP, service.NodePort, "", 30080, 40005)),
	)
}

func TestRulesAreAsInTheGoldenFiles(t *testing.T) {
	bound := every()
	for i := range bound.Bindings {
		b := &bound.Bindings[i]
		addr := nodeIP
		if b.Name.Family == service.IPv6 {
			addr = nodeIPv6
		}
		b.Listener = netip.AddrPortFrom(addr, b.Listener.Port())
	}
	cases := []struct {
		golden string
		cfg    redirect.Config
		want   redirect.Rules
	}{
		{"every", redirect.Config{}, every()},
		{"bound", redirect.Config{}, bound},
		{"node-port-addresses", redirect.Config{NodePortAddresses: nodePorts(t, "192.0.2.0/24", " 10.0.0.1/8 ", "primary")},
			rules(binding("shop/web:http", service.TCP, service.NodePort, "", 30080, 40001))},
		{"policies", redirect.Config{}, policies()},
		{"empty", redirect.Config{}, rules()},
	}
	forEachBackend(t, func(t *testing.T, p *programs) {
		for _, c := range cases {
			t.Run(c.golden, func(t *testing.T) {
				n := newNode(t)
				n.sync(n.open(c.cfg), c.want)
				for family, command := range map[string]string{"ipv4": "iptables-save", "ipv6": "ip6tables-save"} {
					checkGolden(t, c.golden+"."+family, n.table(command+" -t nat")+n.table(command+" -t filter"))
				}
			})
		}
	})
}

// TestRulesAreWrittenAsTheyArePrinted would see rules that are found equal only by
// taking them apart.
func TestRulesAreWrittenAsTheyArePrinted(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		for _, want := range []redirect.Rules{every(), policies()} {
			n := newNode(t)
			n.sync(n.open(redirect.Config{}), want)
			saved := n.saved()
			for family, host := range map[service.Family]netip.Addr{service.IPv4: nodeIP, service.IPv6: nodeIPv6} {
				lines, _ := redirect.Render(family, host, want)
				for _, line := range lines {
					if strings.HasPrefix(line, "-A ") && !strings.Contains(saved, line+"\n") {
						t.Errorf("not printed as it was written: %s", line)
					}
				}
			}
		}
	})
}

// checkGolden compares with a file in testdata, and writes it where there is none.
func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	want, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		t.Errorf("%s did not exist; it was written and is to be looked at", path)
		err = os.WriteFile(path, []byte(got), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("rules differ from %s\ngot:\n%s\nwant:\n%s", path, got, want)
	}
}
