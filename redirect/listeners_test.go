package redirect_test

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-splice/kube-splice/redirect"
	"github.com/kube-splice/kube-splice/service"
)

func TestListenersAreFoundInTheKernel(t *testing.T) {
	forEachBackend(t, func(t *testing.T, p *programs) {
		n := newNode(t)
		listeners := func() (ports map[service.ListenerName]uint16) {
			r := n.open(redirect.Config{})
			n.do(func() (err error) {
				ports, err = r.Listeners(t.Context())
				return err
			})
			return ports
		}
		if got := listeners(); len(got) != 0 {
			t.Errorf("listeners without rules: %v", got)
		}
		bindings := every().Bindings
		bound := binding("shop/bound", service.TCP, service.ClusterIP, "fd00:10:96::66", 80, 0)
		bound.Listener = netip.AddrPortFrom(nodeIPv6, 40099)
		bindings = append(bindings, bound, binding("shop/only-node-port", service.UDP, service.NodePort, "", 30099, 40098))
		local := binding("shop/local", service.TCP, service.ClusterIP, "10.96.0.77", 80, 40077)
		local.Portal.Scope = service.Local
		bindings = append(bindings, local)
		bindings = append(bindings, apart(binding("shop/apart", service.TCP, service.NodePort, "", 30088, 40080), 40081)...)
		bindings = append(bindings, apart(binding("shop/apart", service.TCP, service.ExternalIP, "2001:db8:2::88", 80, 40082), 40083)...)
		n.sync(n.open(redirect.Config{}), rules(bindings...))
		n.run("iptables -t nat -I KUBE-PORTALS-CONTAINER -p tcp --dport 1 -j REDIRECT --to-ports 2")
		want := map[service.ListenerName]uint16{}
		for _, b := range bindings {
			want[service.ListenerName{Name: b.Name, Scope: b.Portal.Scope}] = b.Listener.Port()
		}
		if got := listeners(); !maps.Equal(got, want) {
			t.Errorf("got %v\nwant %v", got, want)
		}
	})
}

func FuzzSavedRules(f *testing.F) {
	f.Add("", "ns", "name", "port", uint16(80), uint16(40000), uint8(0), "")
	f.Add("*nat\n:KUBE-PORTALS-CONTAINER - [0:0]\n-A KUBE-PORTALS-CONTAINER -p tcp -m comment --comment \"a\\\"b/c\" ! -d 1.2.3.4/32 -j DNAT --to-destination [::1]:1\nCOMMIT\n",
		"shop", "we\"b", "a:b", uint16(1), uint16(1), uint8(1), "-p")
	f.Add("*nat\n-A KUBE-NODEPORT-CONTAINER -p udp --comment -m \\", "", "/", "", uint16(0), uint16(65535), uint8(255), "cali+")
	f.Add("", "shop", "a:b", "", uint16(80), uint16(40000), uint8(2), "+")
	f.Add("*nat\n:KUBE-PORTALS-HOST - [0:0]\n-A KUBE-PORTALS-HOST -p tcp -m comment --comment \"a/b (local)\" -j REDIRECT --to-ports 1\nCOMMIT\n",
		"shop", "web", "http (local)", uint16(80), uint16(40000), uint8(8), "br0")
	f.Add("", "shop", "web", "http", uint16(80), uint16(40000), uint8(2+4), "cbr0")
	f.Add("*nat\n:KUBE-PORTALS-CONTAINER - [0:0]\n-A KUBE-PORTALS-CONTAINER -d 10.96.0.1/32 -p tcp -m comment --comment \"shop/web\" -m tcp --dport 80 -m physdev ! --physdev-is-in -j REDIRECT --to-ports 40000\nCOMMIT\n",
		"shop", "web", "", uint16(80), uint16(40000), uint8(0), "")
	f.Fuzz(func(t *testing.T, text, namespace, name, port string, number, listener uint16, how uint8, iface string) {
		b := service.Binding{
			Name:     service.Name{Namespace: namespace, Service: name, Port: port, Protocol: service.TCP, Family: service.IPv4},
			Portal:   service.Portal{Addr: netip.MustParseAddr("10.96.0.1"), Number: number},
			Listener: netip.AddrPortFrom(netip.IPv4Unspecified(), listener),
		}
		if how&1 != 0 {
			b.Name.Protocol = service.UDP
		}
		b.Portal.Scope = service.Scope(how >> 1 & 1)
		if how&4 != 0 {
			b.Portal.Clients = service.Inside
		}
		want := rules(b)
		if pods := (redirect.PodTraffic{Interface: iface}); pods.Check() == nil {
			want.Pods = pods
		}
		for name, port := range redirect.SavedListeners(text, service.IPv6) {
			if port == 0 || name.Name.Family != service.IPv6 {
				t.Errorf("listener %d of %v from %q", port, name, text)
			}
		}
		redirect.SavedDiffers(text, service.IPv4, nodeIP, want)

		lines, refused := redirect.Render(service.IPv4, nodeIP, want)
		saved := strings.Join(lines, "\n") + "\n"
		got := redirect.SavedListeners(saved, service.IPv4)
		if len(refused) > 0 {
			if len(got) != 0 {
				t.Errorf("refused (%v) and written: %q", refused, saved)
			}
			return
		}
		if len(got) != 1 || got[service.ListenerName{Name: b.Name, Scope: b.Portal.Scope}] != listener {
			t.Errorf("wrote %v to %d, read %v from %q", b, listener, got, saved)
		}
		if redirect.SavedDiffers(saved, service.IPv4, nodeIP, want) {
			t.Errorf("rules differ from themselves: %q", saved)
		}
	})
}

func TestRulesPrintedDifferentlyAreTheSame(t *testing.T) {
	b := rules(
		binding("shop/web", service.TCP, service.ExternalIP, "10.96.0.1", 80, 40000),
		binding("shop/web", service.TCP, service.NodePort, "", 30080, 40000),
	)
	lines, _ := redirect.Render(service.IPv4, nodeIP, b)
	text := strings.Join(lines, "\n") + "\n"
	same := map[string]string{
		"unquoted comment": strings.ReplaceAll(text, `"shop/web"`, `shop/web`),
		"order of matches": strings.ReplaceAll(text, ` -m comment --comment "shop/web" -m tcp`, ` -m tcp`),
		"blanks":           strings.ReplaceAll(text, " -m tcp --dport", "  -m tcp  --dport"),
	}
	same["order of matches"] = strings.ReplaceAll(same["order of matches"], " -j ", ` -m comment --comment "shop/web" -j `)
	same["order of matches"] = strings.ReplaceAll(same["order of matches"], `-m comment --comment "shop/web" -j RETURN`, "-j RETURN")
	for name, printed := range same {
		if printed == text || redirect.SavedDiffers(printed, service.IPv4, nodeIP, b) {
			t.Errorf("%s: taken for other rules:\n%s", name, printed)
		}
	}
	for _, change := range [][2]string{{"--dport 80", "--dport 81"}, {" --ctstate NEW", " ! --ctstate NEW"}, {"RETURN", "ACCEPT"}, {"-d 10.", "! -d 10."}} {
		if !redirect.SavedDiffers(strings.Replace(text, change[0], change[1], 1), service.IPv4, nodeIP, b) {
			t.Errorf("%q for %q goes unnoticed", change[1], change[0])
		}
	}
}

// many are 10,000 Services of one clusterIP port each.
func many(count int) redirect.Rules {
	var bindings []service.Binding
	for i := range count {
		addr := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		bindings = append(bindings, binding(fmt.Sprintf("namespace-%d/service-%d:http", i%100, i), service.TCP,
			service.ClusterIP, addr.String(), 80, uint16(20000+i)))
	}
	return rules(bindings...)
}

func BenchmarkRender(b *testing.B) {
	want := many(10000)
	for b.Loop() {
		redirect.Render(service.IPv4, nodeIP, want)
	}
}

func BenchmarkCompare(b *testing.B) {
	want := many(10000)
	lines, _ := redirect.Render(service.IPv4, nodeIP, want)
	text := strings.Join(lines, "\n") + "\n"
	for b.Loop() {
		if redirect.SavedDiffers(text, service.IPv4, nodeIP, want) {
			b.Fatal("differs")
		}
	}
}
