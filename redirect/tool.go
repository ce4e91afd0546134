package redirect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"time"

	goiptables "github.com/coreos/go-iptables/iptables"
	"github.com/kube-splice/kube-splice/service"
)

// The two kernel interfaces behind the iptables programs, which are also the
// infixes by which distributions name the programs of each. The plain names are
// the ones the distribution or the administrator chose.
const (
	nft    = "nft"
	legacy = "legacy"
	plain  = ""
)

// tool is the iptables programs of one family.
type tool struct {
	family service.Family
	name   string // of the program that edits rules; the others add a suffix
	mode   string // nft or legacy
	wait   time.Duration
	log    *slog.Logger
	// jumps edits single rules and deletes chains.
	jumps *goiptables.IPTables
	// small is set once this kernel turned out to take only small transactions.
	small bool
	// written is how many commands on rules were given since the last Sync began, by
	// table.
	written map[string]int
}

// openTool finds the programs of a family; variant is plain, nft or legacy. A
// program that is missing gives an exec.ErrNotFound.
func openTool(ctx context.Context, cfg Config, family service.Family, variant string) (*tool, error) {
	t := &tool{family: family, name: "iptables", wait: cfg.LockWait, log: cfg.Log, written: map[string]int{}}
	if family == service.IPv6 {
		t.name = "ip6tables"
	}
	if variant != plain {
		t.name += "-" + variant
	}
	for _, program := range []string{t.name, t.name + "-save", t.name + "-restore"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("find %s in PATH: install the iptables package: %w", program, exec.ErrNotFound)
		}
	}
	version, err := t.run(ctx, nil, t.name, "--version")
	if err != nil {
		return nil, err
	}
	t.mode = legacy
	if strings.Contains(string(version), "nf_tables") {
		t.mode = nft
	}
	return t, retry(ctx, t.openJumps)
}

// openJumps makes the object that edits single rules. Its calls take no context,
// so it waits for the lock a second at a time and is called again.
func (t *tool) openJumps() (err error) {
	protocol := goiptables.ProtocolIPv4
	if t.family == service.IPv6 {
		protocol = goiptables.ProtocolIPv6
	}
	t.jumps, err = goiptables.New(goiptables.Path(t.name), goiptables.IPFamily(protocol), goiptables.Timeout(1))
	if err != nil && strings.HasSuffix(err.Error(), fmt.Sprintf("exit status %d", statusBusy)) {
		return &programError{t.name, statusBusy, err.Error()}
	}
	return err
}

// run starts one of the programs until it is not busy.
func (t *tool) run(ctx context.Context, input []byte, program string, args ...string) (output []byte, err error) {
	err = retry(ctx, func() error {
		output, err = run(ctx, input, program, args...)
		return err
	})
	return output, err
}

// save reads all tables from the kernel, at once: the nft programs fetch every
// rule whichever table is asked for, and the legacy programs would make a table
// that is asked for and not there.
func (t *tool) save(ctx context.Context) (saved, error) {
	text, err := t.run(ctx, nil, t.name+"-save")
	if err != nil {
		return nil, fmt.Errorf("read %s rules: %w", t.family, err)
	}
	return parseSaved(string(text)), nil
}

// probe makes sure that there is a nat table, or that one can be made, and that
// we may use it.
func (t *tool) probe(ctx context.Context) error {
	if _, err := t.run(ctx, nil, t.name+"-save", "-t", "nat"); err != nil {
		return fmt.Errorf("read %s table nat: %w", t.family, err)
	}
	return nil
}

// insert makes line, in the form "-A CHAIN …", the first rule of its chain.
func (t *tool) insert(ctx context.Context, table, line string) error {
	return t.edit(ctx, "insert", table, line, func(chain string, spec []string) error {
		return t.jumps.Insert(table, chain, 1, spec...)
	})
}

// append makes line the last rule of its chain.
func (t *tool) append(ctx context.Context, table, line string) error {
	return t.edit(ctx, "append", table, line, func(chain string, spec []string) error {
		return t.jumps.Append(table, chain, spec...)
	})
}

// delete removes the first rule of line's chain that says the same as line.
func (t *tool) delete(ctx context.Context, table, line string) error {
	return t.edit(ctx, "delete", table, line, func(chain string, spec []string) error {
		return t.jumps.Delete(table, chain, spec...)
	})
}

func (t *tool) edit(ctx context.Context, verb, table, line string, do func(chain string, spec []string) error) error {
	all := words(line)
	err := t.call(ctx, func() error { return do(all[1], all[2:]) })
	if err != nil {
		return fmt.Errorf("%s %s rule %q in table %s: %w", verb, t.family, line, table, err)
	}
	t.written[table]++
	return nil
}

// call calls a function of t.jumps until it is not busy.
func (t *tool) call(ctx context.Context, f func() error) error {
	return retry(ctx, func() error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return f()
	})
}

// list returns the rules of a chain; a chain that does not exist has none.
func (t *tool) list(ctx context.Context, table, chain string) (lines []string, err error) {
	err = t.call(ctx, func() error {
		lines, err = t.jumps.List(table, chain)
		return err
	})
	var failed *goiptables.Error
	if errors.As(err, &failed) && failed.ExitStatus() == 1 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s chain %s of table %s: %w", t.family, chain, table, err)
	}
	return slices.DeleteFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "-A ") }), nil
}
