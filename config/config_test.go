package config_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/kube-splice/kube-splice/config"
)

func TestFileOfKubeadmLoadsWithoutAWord(t *testing.T) {
	file, err := config.Read("testdata/kubeadm.yaml")
	check(t, err)
	if file.Ignored != "" {
		t.Errorf("ignored: %s", file.Ignored)
	}
	if faults := config.Validate(file.Config); len(faults) > 0 {
		t.Errorf("faults: %v", faults)
	}
	if unused := config.Unused(file.Config); len(unused) > 0 {
		t.Errorf("unused: %v", unused)
	}
	want := config.Default()
	want.ClientConnection.Kubeconfig, want.ClusterCIDR = "/var/lib/kube-proxy/kubeconfig.conf", "10.244.0.0/16"
	// It says how often to flush as a number, which changes nothing but how it is written.
	file.Config.Logging.FlushFrequency.SerializeAsString = want.Logging.FlushFrequency.SerializeAsString
	if !reflect.DeepEqual(file.Config, want) {
		t.Errorf("%+v\nwant the defaults:\n%+v", file.Config, want)
	}
	if given := file.Given; given.Conntrack.MaxPerCore != nil || given.OOMScoreAdj != nil {
		t.Errorf("defaults count as given: %+v", given)
	}
}

func TestUnknownAndRepeatedFieldsAreIgnoredWithTheirNames(t *testing.T) {
	for name, c := range map[string]struct {
		lines string
		named []string // none: nothing is ignored
	}{
		"nothing":            {"mode: ipvs", nil},
		"unknown":            {"mode: ipvs\nudpIdleTimeout: 250ms", []string{"udpIdleTimeout"}},
		"unknown in section": {"mode: ipvs\niptables: {syncPeriods: 1s}", []string{"iptables.syncPeriods"}},
		"twice":              {"mode: iptables\nmode: ipvs", []string{"mode"}},
		"several":            {"mode: iptables\nmode: ipvs\nfoo: 1\nbar: {baz: 1}", []string{"mode", "foo", "bar"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := decode(t, c.lines)
			if file.Config.Mode != "ipvs" {
				t.Errorf("mode is %q", file.Config.Mode)
			}
			if (file.Ignored == "") != (c.named == nil) || strings.Contains(file.Ignored, "\n") {
				t.Errorf("ignored is %q", file.Ignored)
			}
			for _, field := range c.named {
				if !strings.Contains(file.Ignored, `"`+field+`"`) {
					t.Errorf("%q does not name %s", file.Ignored, field)
				}
			}
		})
	}
}

func TestFilesThatCannotBeReadAreRefusedInOneLine(t *testing.T) {
	const want = "want kind: KubeProxyConfiguration and apiVersion: kubeproxy.config.k8s.io/v1alpha1"
	folder := t.TempDir()
	for name, c := range map[string]struct{ text, says string }{
		"empty":           {"", want},
		"only a comment":  {"# nothing\n", want},
		"no kind":         {"apiVersion: kubeproxy.config.k8s.io/v1alpha1\n", want},
		"no version":      {"kind: KubeProxyConfiguration\n", want},
		"other kind":      {"kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n", "KubeletConfiguration"},
		"other version":   {"kind: KubeProxyConfiguration\napiVersion: kubeproxy.config.k8s.io/v1alpha2\n", want},
		"no YAML":         {header + "mode: [\n", "line"},
		"tabs":            {header + "iptables:\n\tsyncPeriod: 1s\n", "line 4"},
		"number for text": {header + "mode: 3\n", "mode"},
		"bad duration":    {header + "iptables: {syncPeriod: soon}\n", "soon"},
		"bad type and unknown field": {
			header + "foo: 1\nbindAddressHardFail: maybe\n", "bindAddressHardFail"},
		"list":             {"- 1\n", ""},
		"word":             {"hello\n", ""},
		"too big a number": {header + "oomScoreAdj: 99999999999\n", "oomScoreAdj"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(folder, strings.ReplaceAll(name, " ", "-"))
			check(t, os.WriteFile(path, []byte(c.text), 0o600))
			_, err := config.Read(path)
			if err == nil {
				t.Fatal("it was read")
			}
			for _, part := range []string{path, c.says} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than a line: %q", err)
			}
		})
	}
	if _, err := config.Read(folder + "/no-such-file"); err == nil || !strings.Contains(err.Error(), "no-such-file") {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := config.Read("/dev/zero"); err == nil || !strings.Contains(err.Error(), "/dev/zero is longer than 1048576 bytes") {
		t.Errorf("a file without an end: %v", err)
	}
}

func TestJSONIsReadToo(t *testing.T) {
	file, err := config.Decode([]byte(`{"kind":"KubeProxyConfiguration","apiVersion":"kubeproxy.config.k8s.io/v1alpha1","clusterCIDR":"10.1.0.0/16"}`))
	check(t, err)
	if file.Config.ClusterCIDR != "10.1.0.0/16" || file.Ignored != "" {
		t.Errorf("%q, ignored %q", file.Config.ClusterCIDR, file.Ignored)
	}
}

func TestWhatIsWrittenReadsBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	for name, c := range map[string]*config.Configuration{
		"defaults": config.Default(),
		"all set": decode(t, "mode: ipvs", "featureGates: {A: true}", "nodePortAddresses: [primary]", "ipvs: {scheduler: lc, excludeCIDRs: [10.0.0.0/8]}",
			"conntrack: {maxPerCore: 0, udpTimeout: 30s}", "oomScoreAdj: 0", "logging: {format: json, verbosity: 4, vmodule: [{filePattern: a, verbosity: 2}]}").Config,
	} {
		check(t, config.Write(path, c))
		file, err := config.Read(path)
		check(t, err)
		if !reflect.DeepEqual(file.Config, c) || file.Ignored != "" {
			t.Errorf("%s: %+v (ignored %q)\nwant %+v", name, file.Config, file.Ignored, c)
		}
		text, err := json.Marshal(c)
		check(t, err)
		if !strings.Contains(string(text), `"kind":"KubeProxyConfiguration","apiVersion":"kubeproxy.config.k8s.io/v1alpha1"`) {
			t.Errorf("%s: as JSON without kind and apiVersion: %s", name, text)
		}
	}
	if err := config.Write("/no/such/folder/file", config.Default()); err == nil || !strings.Contains(err.Error(), "/no/such/folder/file") {
		t.Errorf("into no folder: %v", err)
	}
}
