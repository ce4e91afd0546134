package config_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/kube-splice/kube-splice/config"
)

// FuzzConfiguration holds that any file is either refused in one line, or has all
// that the rest of the program relies on, and reads back as it was written.
func FuzzConfiguration(f *testing.F) {
	kubeadm, err := os.ReadFile("testdata/kubeadm.yaml")
	check(f, err)
	f.Add(string(kubeadm))
	for _, lines := range []string{
		"", "mode: ipvs\nmode: x\nfoo: 1", "clusterCIDR: '10.0.0.0/8,fd00::/8'", "logging: {vmodule: [{filePattern: a}]}", "oomScoreAdj: 1e3",
		"conntrack: {maxPerCore: null, tcpEstablishedTimeout: 1s}", "nodePortAddresses: [primary, primary]", "bindAddress: '::'",
	} {
		f.Add(header + lines)
	}
	f.Fuzz(func(t *testing.T, text string) {
		file, err := config.Decode([]byte(text))
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than a line: %q", err)
			}
			return
		}
		config.Unused(file.Config)
		if len(config.Validate(file.Config)) > 0 {
			return
		}
		path := filepath.Join(t.TempDir(), "config.yaml")
		check(t, config.Write(path, file.Config))
		again, err := config.Read(path)
		check(t, err)
		if len(config.Validate(again.Config)) > 0 || !reflect.DeepEqual(config.Unused(again.Config), config.Unused(file.Config)) {
			t.Errorf("reads back as %+v\nwas %+v", again.Config, file.Config)
		}
	})
}
