package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// klogLine is how a line in klog's own format begins: "E1201 04:02:17.123456  ".
var klogLine = regexp.MustCompile(`(?m)^[IWEF]\d{4} \d{2}:`)

// failingCredentials gives a token once and then fails.
const failingCredentials = `#!/bin/sh
test -e "$0.used" && { echo "no ticket" >&2; exit 1; }
: > "$0.used"
echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"once"}}'
`

func TestLinesOfTheAPIClientAreInOurLogsFormat(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "who are you?", http.StatusUnauthorized)
	}))
	check(t, server.Listener.Close())
	var err error
	server.Listener, err = c.Node.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	server.StartTLS()
	t.Cleanup(server.Close)

	plugin := filepath.Join(t.TempDir(), "credentials")
	check(t, os.WriteFile(plugin, []byte(failingCredentials), 0o700))
	c.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	check(t, os.WriteFile(c.kubeconfig, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: %q, interactiveMode: Never}}}]
`, server.URL, plugin), 0o600))

	p := c.launch("", "--log-format", "json", "-v", "4")
	var said string
	eventually(t, func() error {
		said = p.said.text()
		if !strings.Contains(said, "refreshing credentials") {
			return errors.New("client-go says nothing of its credentials")
		}
		return nil
	})
	if line := klogLine.FindString(said); line != "" {
		t.Errorf("a line in klog's format, %q: %s", line, said)
	}
	for line := range strings.Lines(said) {
		if strings.Contains(line, "refreshing credentials") && (!strings.Contains(line, `"level":"WARN"`) || !strings.Contains(line, `"from":"client-go"`)) {
			t.Errorf("said as %s", line)
		}
	}
	p.finish(0)
}
