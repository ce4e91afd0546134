package config_test

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/kube-splice/kube-splice/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// decode decodes a file of these lines.
func decode(t testing.TB, lines ...string) *config.File {
	t.Helper()
	file, err := config.Decode([]byte(header + strings.Join(lines, "\n")))
	check(t, err)
	return file
}
