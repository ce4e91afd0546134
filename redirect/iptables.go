package redirect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-splice/kube-splice/service"
)

// Config says how rules are written. The zero value is a good one.
type Config struct {
	// NodePortAddresses are the addresses of this node that answer on node ports.
	NodePortAddresses NodePortAddresses
	// LockWait is how long one program waits for the lock of another iptables
	// user before it is tried again, in whole seconds; 0 means 5 s.
	LockWait time.Duration
	// Log receives what an operator should know once; nil means slog.Default().
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	c.LockWait = cmp.Or(c.LockWait, 5*time.Second)
	c.Log = cmp.Or(c.Log, slog.Default())
	return c
}

// IPTables keeps the kernel's rules as they should be. Its methods are for one
// goroutine at a time, and work in the network namespace of the calling thread.
type IPTables struct {
	cfg     Config
	variant string
	v4, v6  *tool // v6 is nil while this node has no IPv6 tables
	noIPv6  error // why v6 is nil
	warned  warning
	cleaned bool // leftovers in the other kernel interface were looked for
	placed  map[*tool]placement
	answers answers
}

// placement is what the last Sync placed in one family, and for which node.
type placement struct {
	junctions []junction
	nodeIPs   []netip.Addr
	host      netip.Addr     // see hostAddress
	total     map[string]int // of our rules, by table
}

// NewIPTables finds the iptables programs of the kernel interface that this node
// uses: the programs of plain names in PATH, unless the kubelet's chains are
// only behind the other ones. Nothing is written. An error is one line that says
// what is missing, a program or a privilege.
func NewIPTables(ctx context.Context, cfg Config) (*IPTables, error) {
	t := &IPTables{cfg: cfg.withDefaults(), placed: map[*tool]placement{}}
	var err error
	if t.v4, t.variant, err = chooseVariant(ctx, t.cfg); err != nil {
		return nil, err
	}
	if err := t.v4.probe(ctx); err != nil {
		return nil, err
	}
	if err := t.openIPv6(ctx); err != nil {
		return nil, err
	}
	return t, nil
}

// Backend returns the kernel interface in use, "nft" or "legacy".
func (t *IPTables) Backend() string { return t.v4.mode }

// openIPv6 opens the IPv6 programs, if there are any and a table is behind them;
// else noIPv6 is why not. The error is a passing one, such as a busy lock, which
// tells nothing about this node.
func (t *IPTables) openIPv6(ctx context.Context) error {
	v6, err := openTool(ctx, t.cfg, service.IPv6, t.variant)
	if err == nil {
		err = v6.probe(ctx)
	}
	if err == nil {
		t.v6, t.noIPv6, t.warned = v6, nil, notWarned
		return nil
	}
	if !absent(err) || ctx.Err() != nil {
		return fmt.Errorf("open the IPv6 programs: %w", err)
	}
	t.noIPv6 = err
	return nil
}

// Sync brings the kernel's rules to what is wanted: it reads them, and writes
// only what differs, one transaction a table. When it fails, each table of that
// family is as before or as wanted, save for jumps, and Sync is to be called
// again; the other family is written all the same. A Binding that cannot be
// expressed as a rule is reported in the error and stops no other, and so is an
// interface of pods.
//
// While another program holds the lock, Sync waits, each program run several
// times Config.LockWait, about a minute by default. It ends early with ctx.
func (t *IPTables) Sync(ctx context.Context, want Rules) error {
	var errs []error
	if err := want.Pods.Check(); err != nil {
		errs = append(errs, err)
		want.Pods.Interface = ""
	}
	errs = append(errs, t.syncFamily(ctx, t.v4, want))
	if v6, err := t.ipv6For(ctx, want); err != nil {
		errs = append(errs, err)
	} else if v6 != nil {
		errs = append(errs, t.syncFamily(ctx, v6, want))
	}
	if !t.cleaned && t.inForce() {
		t.cleanLeftovers(ctx)
		t.cleaned = ctx.Err() == nil
	}
	return errors.Join(errs...)
}

// inForce reports whether the rules of each family were written once.
func (t *IPTables) inForce() bool {
	_, v4 := t.placed[t.v4]
	_, v6 := t.placed[t.v6]
	return v4 && (v6 || t.v6 == nil)
}

// ipv6For returns the IPv6 programs, or nil where this node has none. That is no
// error: a Service of both families is served by the one there is.
func (t *IPTables) ipv6For(ctx context.Context, want Rules) (*tool, error) {
	wanted := slices.ContainsFunc(want.Bindings, func(b service.Binding) bool { return b.Name.Family == service.IPv6 })
	if t.v6 == nil && wanted {
		if err := t.openIPv6(ctx); err != nil {
			return nil, err
		}
	}
	switch {
	case t.v6 != nil || t.warned == warnedOfServices:
	case wanted:
		t.cfg.Log.Warn("IPv6 addresses of Services are not served: this node has no IPv6 rules (install ip6tables, or load its nat table)", "reason", t.noIPv6)
		t.warned = warnedOfServices
	case t.warned == notWarned:
		t.cfg.Log.Info("This node has no IPv6 rules; IPv6 is left out", "reason", t.noIPv6)
		t.warned = warnedOfNode
	}
	return t.v6, nil
}

// warning is how much was said about IPv6 being missing.
type warning uint8

const (
	notWarned        warning = iota
	warnedOfNode             // while no Service wanted it
	warnedOfServices         // when one did
)

// syncFamily writes the contents of chains first, and jumps to them after.
func (t *IPTables) syncFamily(ctx context.Context, tool *tool, want Rules) error {
	clear(tool.written)
	host, err := hostAddress(tool.family, want.NodeIPs)
	if err != nil {
		return err
	}
	have, err := tool.save(ctx)
	if err != nil {
		return err
	}
	set, refused, err := tool.writeChains(ctx, want, host, have)
	if err != nil {
		return err
	}
	places := junctions(t.cfg.NodePortAddresses.destinations(tool.family, host, want.NodeIPs))
	if err := tool.place(ctx, places, have); err != nil {
		return err
	}
	if slices.Contains(want.Preserve, tool.family) || have.bringsAnswers() {
		places = append(places, t.bringAnswers(ctx, tool, have)...)
	}
	t.placed[tool] = placement{junctions: places, nodeIPs: want.NodeIPs, host: host, total: count(set, places)}
	return errors.Join(refused...)
}

// place puts jumps into the built-in chains, where they are not in their places.
func (t *tool) place(ctx context.Context, places []junction, have saved) error {
	for _, j := range places {
		lines := have[j.table][j.chain]
		if j.holds(lines) {
			continue
		}
		if err := j.repair(ctx, t, lines); err != nil {
			return err
		}
	}
	return nil
}

// writeChains brings the contents of our chains to what is wanted, and returns it.
func (t *tool) writeChains(ctx context.Context, want Rules, host netip.Addr, have saved) (set ruleset, refused []error, err error) {
	r := renderer{family: t.family, host: host, pods: want.Pods.sources(t.family)}
	r.tracked = slices.ContainsFunc(have["filter"][nodePortNonLocal], func(line string) bool { return same(line, keepTracking) })
	set, refused = r.render(want.Bindings)
	var changes []change
	for _, table := range tables {
		changes = append(changes, diff(table, set, have[table]))
	}
	return set, refused, t.restore(ctx, changes)
}

// Intact reports whether the jumps that the last Sync placed are still there and
// in place, and with them the chains they lead to, and whether this host still
// has the address that the rules were written for. It costs a few short program
// runs, whatever the number of rules, and does not read the contents of the
// chains. Before the first successful Sync there is nothing to miss: true.
func (t *IPTables) Intact(ctx context.Context) (bool, error) {
	for tool, placed := range t.placed {
		host, err := hostAddress(tool.family, placed.nodeIPs)
		if err != nil || host != placed.host {
			return false, err
		}
		for _, j := range placed.junctions {
			lines, err := tool.list(ctx, j.table, j.chain)
			if err != nil || !j.holds(lines) {
				return false, err
			}
		}
	}
	return t.answers.intact()
}

// Listeners returns the ports of the listeners that the rules found in the kernel
// lead to, so that a new process can listen there again and change no rule.
func (t *IPTables) Listeners(ctx context.Context) (map[service.ListenerName]uint16, error) {
	ports := map[service.ListenerName]uint16{}
	for _, tool := range []*tool{t.v4, t.v6} {
		if tool == nil {
			continue
		}
		have, err := tool.save(ctx)
		if err != nil {
			return nil, err
		}
		listenerPorts(have, tool.family, ports)
	}
	return ports, nil
}
