package redirect

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/kube-splice/kube-splice/service"
)

// Cleanup removes our chains and every jump into them, of both families and from
// both kernel interfaces, and our routing rules, and touches nothing else. It needs nothing but the
// iptables programs that are there, may be repeated, and goes on after an error
// to remove what it can, unless it lacks the privilege. It returns where there
// were such rules, as in "IPv4 nft".
func Cleanup(ctx context.Context, cfg Config) (removed []string, err error) {
	cfg = cfg.withDefaults()
	var errs []error
	removed, err = removeRouting()
	errs = append(errs, err)
	looked := false
	for _, variant := range []string{plain, nft, legacy} {
		from, err := removeVariant(ctx, cfg, variant)
		removed = append(removed, from...)
		if err != nil && denied(err.Error()) {
			return removed, err
		}
		if !errors.Is(err, exec.ErrNotFound) {
			looked = true
			errs = append(errs, err)
		}
	}
	if !looked {
		return nil, errors.New("look for rules: there is no iptables program in PATH (on Debian: apt-get install iptables)")
	}
	return removed, errors.Join(errs...)
}

// cleanLeftovers removes what an earlier run left in the kernel interface that
// is not in use now: those rules would still be in force.
func (t *IPTables) cleanLeftovers(ctx context.Context) {
	removed, err := removeVariant(ctx, t.cfg, t.v4.other())
	if errors.Is(err, exec.ErrNotFound) {
		return // without its programs there is no telling
	}
	if err != nil {
		t.cfg.Log.Warn("Old rules in the other iptables could not be removed", "iptables", t.v4.other(), "error", err)
	} else if len(removed) > 0 {
		t.cfg.Log.Info("Removed old rules from the other iptables", "iptables", t.v4.other())
	}
}

// removeVariant removes our chains through the programs of one variant and returns
// where there were any. The error is exec.ErrNotFound if no program is there.
func removeVariant(ctx context.Context, cfg Config, variant string) (removed []string, err error) {
	var errs []error
	missing := 0
	for _, family := range []service.Family{service.IPv4, service.IPv6} {
		t, err := openTool(ctx, cfg, family, variant)
		if errors.Is(err, exec.ErrNotFound) {
			if missing++; missing == 2 {
				return nil, exec.ErrNotFound
			}
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		some, err := t.remove(ctx)
		if some {
			removed = append(removed, t.family.String()+" "+t.mode)
		}
		if err != nil && denied(err.Error()) {
			return removed, err // and so it would be the other family
		}
		errs = append(errs, err)
	}
	return removed, errors.Join(errs...)
}

// remove removes our chains from the tables of one family.
func (t *tool) remove(ctx context.Context) (removed bool, err error) {
	have, err := t.save(ctx)
	if err != nil {
		return false, err
	}
	var errs []error
	for _, table := range append([]string{"mangle"}, tables...) {
		some, err := t.removeFrom(ctx, table, have[table])
		removed = removed || some
		errs = append(errs, err)
	}
	return removed, errors.Join(errs...)
}

// removeFrom removes our chains from one table, jumps first.
func (t *tool) removeFrom(ctx context.Context, table string, have map[string][]string) (removed bool, err error) {
	var errs []error
	for _, lines := range have {
		for _, line := range ourJumps(table, lines) {
			errs = append(errs, t.delete(ctx, table, line))
			removed = true
		}
	}
	for _, chain := range chains[table] {
		if _, exists := have[chain]; !exists {
			continue
		}
		removed = true
		if err := t.call(ctx, func() error { return t.jumps.ClearAndDeleteChain(table, chain) }); err != nil {
			errs = append(errs, fmt.Errorf("delete %s chain %s of table %s: %w", t.family, chain, table, err))
		}
	}
	return removed, errors.Join(errs...)
}
