package redirect

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// smallRules is how many rules go into one transaction where the kernel limits
// its size. The limit is on bytes, the socket's send buffer of about 200 KB; a
// rule with the longest names takes 800.
const smallRules = 100

// restore writes the changes, one transaction a table: all of it or, with an
// error, nothing.
//
// Inside a user namespace the nft programs cannot enlarge their socket's buffer,
// and the kernel refuses a big transaction. It is then written as several small
// ones, and meanwhile some portals are without their rules.
func (t *tool) restore(ctx context.Context, changes []change) error {
	if !t.small {
		err := t.restoreOnce(ctx, changes)
		if err == nil || !strings.Contains(err.Error(), "Message too long") {
			return err
		}
		t.small = true
		t.log.Warn("The kernel takes only small transactions here, as in a user namespace; rules are written in parts, each rewrite has a short gap",
			"family", t.family.String(), "rules", smallRules)
	}
	for _, part := range split(changes) {
		if err := t.restoreOnce(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

func (t *tool) restoreOnce(ctx context.Context, changes []change) error {
	lines := input(changes)
	if len(lines) == 0 {
		return nil
	}
	seconds := max(1, int(t.wait.Round(time.Second)/time.Second))
	text := []byte(strings.Join(lines, "\n") + "\n")
	_, err := t.run(ctx, text, t.name+"-restore", "--noflush", "-w", strconv.Itoa(seconds))
	if err != nil {
		return fmt.Errorf("write %s rules: %w%s", t.family, err, failedLine(err, lines))
	}
	for _, c := range changes {
		t.written[c.table] += len(c.rules)
	}
	return nil
}

var lineNumber = regexp.MustCompile(`line:? (\d+)`)

// failedLine quotes the line of iptables-restore's input that it complained of.
func failedLine(err error, lines []string) string {
	var failed *programError
	if !errors.As(err, &failed) {
		return ""
	}
	found := lineNumber.FindStringSubmatch(failed.message)
	if found == nil {
		return ""
	}
	n, err := strconv.Atoi(found[1])
	if err != nil || n < 1 || n > len(lines) {
		return ""
	}
	return fmt.Sprintf(" (line %d: %s)", n, lines[n-1])
}
