package redirect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-splice/kube-splice/service"
)

// An endpoint that is dialled from the client's own address sends its answers to that
// address. What brings them to the proxy's socket instead:
//
//	mangle KUBE-CLIENT-DIALLED   from OUTPUT: marks such connections in conntrack
//	mangle KUBE-CLIENT-ANSWERS   from PREROUTING: marks packets that come back on them
//	a routing rule               leads packets with that mark to a table of our own
//	a route in it                says that every address is this node's
//
// The kernel then finds the socket, which has the client's address. Other packets between
// the client and the endpoint are as before. Once they are there, all of these stay until
// Cleanup: connections may need them that outlive the wish.

// ClientMark is set, besides Mark, on sockets that are bound to a client's address. A
// packet that has it alone is an answer; the routing rule must not match the former, which
// would lead what we send back to ourselves.
const ClientMark = 0x1000

const (
	clientDialled = "KUBE-CLIENT-DIALLED"
	clientAnswers = "KUBE-CLIENT-ANSWERS"
)

// The routing rule's table and priority. It has to come before the table main, which has
// 32766, and any that a VPN puts in its place.
const (
	answersTable    = 0x2000
	answersPriority = 0x20
)

// answerRules mark new connections of TCP only: one that the client itself holds to the
// endpoint, by the same ports, is not touched. Of UDP, an answer that comes when conntrack
// has forgotten the flow begins a new one, which is ours all the same.
var answerRules = ruleset{
	clientDialled: {
		"-A " + clientDialled + " -p tcp" + ourSocket + " -m conntrack --ctstate NEW" + toConnmark,
		"-A " + clientDialled + " -p udp" + ourSocket + toConnmark,
	},
	clientAnswers: {
		"-A " + clientAnswers + dialledHere + " -m conntrack --ctdir REPLY" + toMark,
		"-A " + clientAnswers + " -p udp" + dialledHere + toMark,
	},
}

var (
	ourSocket   = fmt.Sprintf(" -m mark --mark %#x/%#x", Mark|ClientMark, Mark|ClientMark)
	toConnmark  = fmt.Sprintf(" -j CONNMARK --set-xmark %#x/%#x", ClientMark, ClientMark)
	dialledHere = fmt.Sprintf(" -m connmark --mark %#x/%#x", ClientMark, ClientMark)
	toMark      = fmt.Sprintf(" -j MARK --set-xmark %#x/%#x", ClientMark, Mark|ClientMark)
)

// answerJunctions come first: other programs accept what belongs to a connection at once.
var answerJunctions = []junction{
	{table: "mangle", chain: "OUTPUT", head: []string{
		jump("OUTPUT", clientDialled, "connections from a client's own address")}},
	{table: "mangle", chain: "PREROUTING", head: []string{
		jump("PREROUTING", clientAnswers, "answers to them are for this node")}},
}

// answers is how far answers to clients' addresses are brought here.
type answers struct {
	ready [2]atomic.Bool // by familyIndex
	links atomic.Pointer[links]
	fault [2]string // what was last said to be wrong
}

func familyIndex(family service.Family) int {
	if family == service.IPv6 {
		return 1
	}
	return 0
}

// MayPreserve reports whether an endpoint can be dialled from a client's own address: the
// rules for it are in force, and its answers pass this node, as the client is not on the
// endpoint's own link. Neither may be an address of this node. It may be called from any
// goroutine.
func (t *IPTables) MayPreserve(client, endpoint netip.Addr) bool {
	links := t.answers.links.Load()
	if links == nil || !t.answers.ready[familyIndex(service.FamilyOf(endpoint))].Load() {
		return false
	}
	toClient, toEndpoint := links.to(client), links.to(endpoint)
	return toClient != thisNode && toEndpoint > 0 && toClient != toEndpoint
}

// bringAnswers puts everything in place for one family, and returns the jumps that keep it
// so. A kernel that lacks something for it is said once: clients' addresses are hidden then,
// and everything else works.
func (t *IPTables) bringAnswers(ctx context.Context, tool *tool, have saved) []junction {
	a, family := &t.answers, familyIndex(tool.family)
	err := a.bring(ctx, tool, have)
	a.ready[family].Store(err == nil)
	if err == nil {
		a.fault[family] = ""
		return answerJunctions
	}
	if fault := err.Error(); ctx.Err() == nil && fault != a.fault[family] {
		t.cfg.Log.Warn("Endpoints cannot see clients' own addresses; they see the node's", "family", tool.family.String(), "error", err)
		a.fault[family] = fault
	}
	return nil
}

func (a *answers) bring(ctx context.Context, tool *tool, have saved) error {
	if a.links.Load() == nil {
		links, err := openLinks()
		if err != nil {
			return fmt.Errorf("open a netlink socket: %w", err)
		}
		a.links.Store(links)
	}
	if err := routeAnswers(tool.family); err != nil {
		return err
	}
	if err := tool.restore(ctx, []change{diff("mangle", answerRules, have["mangle"])}); err != nil {
		return err
	}
	return tool.place(ctx, answerJunctions, have)
}

// bringsAnswers reports whether our chains for this were made before.
func (s saved) bringsAnswers() bool {
	_, dialled := s["mangle"][clientDialled]
	return dialled
}

// intact reports whether the routing rules and routes are still there.
func (a *answers) intact() (bool, error) {
	for _, family := range []service.Family{service.IPv4, service.IPv6} {
		if !a.ready[familyIndex(family)].Load() {
			continue
		}
		rules, routes, err := ourRouting(family)
		if err != nil || len(rules) == 0 || len(routes) == 0 {
			return false, err
		}
	}
	return true, nil
}

// routeAnswers adds the routing rule and the route, where they are missing.
func routeAnswers(family service.Family) error {
	rules, routes, err := ourRouting(family)
	if err != nil {
		return err
	}
	if len(routes) == 0 {
		loopback, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find the loopback interface: %w", err)
		}
		route := answersRoute(family)
		route.LinkIndex = loopback.Attrs().Index
		if err := netlink.RouteAdd(route); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add %s route to table %d: %w", family, answersTable, err)
		}
	}
	if len(rules) == 0 {
		if err := netlink.RuleAdd(answersRule(family)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add %s routing rule: %w", family, err)
		}
	}
	return nil
}

func answersRule(family service.Family) *netlink.Rule {
	mask := uint32(Mark | ClientMark)
	rule := netlink.NewRule()
	rule.Family, rule.Table, rule.Priority = netlinkFamily(family), answersTable, answersPriority
	rule.Mark, rule.Mask = ClientMark, &mask
	return rule
}

func answersRoute(family service.Family) *netlink.Route {
	all := family.Unspecified()
	return &netlink.Route{
		Family: netlinkFamily(family), Table: answersTable, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
		Dst: &net.IPNet{IP: all.AsSlice(), Mask: net.CIDRMask(0, all.BitLen())},
	}
}

// ourRouting returns our routing rules of one family, and what is in our table.
func ourRouting(family service.Family) (rules []netlink.Rule, routes []netlink.Route, err error) {
	all, err := dump(func() ([]netlink.Rule, error) { return netlink.RuleList(netlinkFamily(family)) })
	if err != nil {
		return nil, nil, fmt.Errorf("read %s routing rules: %w", family, err)
	}
	for _, rule := range all {
		if rule.Table == answersTable && rule.Mark == ClientMark {
			rules = append(rules, rule)
		}
	}
	routes, err = dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlinkFamily(family), &netlink.Route{Table: answersTable, Type: unix.RTN_LOCAL}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read %s routes of table %d: %w", family, answersTable, err)
	}
	return rules, routes, nil
}

// removeRouting removes the routing rules and routes of both families, and returns where
// there were any.
func removeRouting() (removed []string, err error) {
	var errs []error
	for _, family := range []service.Family{service.IPv4, service.IPv6} {
		rules, routes, err := ourRouting(family)
		if errors.Is(err, unix.EAFNOSUPPORT) {
			continue
		}
		errs = append(errs, err)
		for _, rule := range rules {
			rule.Family = netlinkFamily(family) // a list does not say
			errs = append(errs, netlink.RuleDel(&rule))
		}
		for _, route := range routes {
			errs = append(errs, netlink.RouteDel(&route))
		}
		if len(rules)+len(routes) > 0 {
			removed = append(removed, family.String()+" routing")
		}
	}
	if err := errors.Join(errs...); err != nil {
		return removed, fmt.Errorf("remove routing rules: %w", err)
	}
	return removed, nil
}
