package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-splice/kube-splice/config"
)

func (c *cluster) sysctl(name string) string {
	c.t.Helper()
	return strings.TrimSpace(c.onNode("cat", "/proc/sys/net/netfilter/"+name))
}

func wantSysctl(c *cluster, name, value string) {
	c.t.Helper()
	if got := c.sysctl(name); got != value {
		c.t.Errorf("%s is %s, want %s", name, got, value)
	}
}

func (p *program) oomScore() string {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.cmd.Process.Pid))
	check(p.t, err)
	return strings.TrimSpace(string(text))
}

const (
	established = "nf_conntrack_tcp_timeout_established"
	closeWait   = "nf_conntrack_tcp_timeout_close_wait"
)

func TestWithManifestsTheKernelIsLeftAloneUnlessAsked(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	before := []string{c.sysctl(established), c.sysctl(closeWait)}
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	check(t, err)
	p := c.start("--config", writeConfig(t, "mode: iptables"))
	wantSysctl(c, established, before[0])
	wantSysctl(c, closeWait, before[1])
	if score := p.oomScore(); score != strings.TrimSpace(string(own)) {
		t.Errorf("oom_score_adj is %s", score)
	}
	p.finish(0)
	p = c.start("--config", writeConfig(t, "conntrack: {tcpCloseWaitTimeout: 30m}", "oomScoreAdj: 501"))
	wantSysctl(c, established, before[0])
	wantSysctl(c, closeWait, "1800")
	if score := p.oomScore(); score != "501" {
		t.Errorf("oom_score_adj is %s", score)
	}
}

func TestInAClusterTheKernelIsSetAsKubeProxySetsIt(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig") // of a server that does not answer
	check(t, os.WriteFile(c.kubeconfig, []byte(kubeconfigOf("http://127.0.0.1:1")), 0o600))
	p := c.launch("", "--conntrack-tcp-timeout-close-wait=0s", "--oom-score-adj=502")
	before := c.sysctl(closeWait)
	eventually(t, func() error {
		if got := c.sysctl(established); got != "86400" {
			return fmt.Errorf("%s is %s", established, got)
		}
		if score := p.oomScore(); score != "502" {
			return fmt.Errorf("oom_score_adj is %s", score)
		}
		return nil
	})
	wantSysctl(c, closeWait, before)
}

// A kubelet protects pods that are critical to the node, and lets none do more.
func TestProgramThatIsSparedAlreadyIsLeftAsItIs(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig") // of a server that does not answer
	check(t, os.WriteFile(c.kubeconfig, []byte(kubeconfigOf("http://127.0.0.1:1")), 0o600))
	p := c.launch("echo -997 >/proc/self/oom_score_adj 2>/dev/null")
	eventually(t, func() error { return wantSaid(p, "msg=starting", 1) })
	switch score := p.oomScore(); score {
	case "-997":
	case "-999":
		t.Error("oom_score_adj was set from -997 to -999")
	default:
		t.Skip("takes the right to lower oom_score_adj")
	}
}

func TestInitOnlySetsTheKernelAndEnds(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	said, status := c.runToEnd("", "--init-only", "--conntrack-max-per-core=0")
	if status != exitOK {
		t.Errorf("status %d: %s", status, said)
	}
	wantSysctl(c, established, "86400")
	wantSysctl(c, closeWait, "3600")
	if rules := c.ourRules(); len(rules) > 0 {
		t.Errorf("rules were written: %v", rules)
	}
}

// readOnly is a setup that makes /proc/sys read-only, as it is in many containers.
const readOnly = `[ -n "$READ_ONLY" ] || READ_ONLY=1 exec unshare -m /bin/sh -c 'mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$0" "$@"' "$0" "$@"`

func TestReadOnlyKernelSettingsAreSaidOnceAndDoNotMatter(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.small()
	p := c.launch(readOnly, "--conntrack-tcp-timeout-established=1h", "--conntrack-tcp-timeout-close-wait=2m")
	p.waitReady()
	wantAnswer(t, c.client(), webAddress, "pod-a")
	if err := wantSaid(p, "level=WARN", 1); err != nil {
		t.Error(err)
	}
	for _, name := range []string{established, closeWait} {
		if err := wantSaid(p, name, 1); err != nil {
			t.Error(err)
		}
	}
	said, status := c.runToEnd(readOnly, "--init-only", "--conntrack-max-per-core=0")
	refusal{status: exitError, words: words("conntrack root " + established)}.check(t, "--init-only", said, status)
}

func TestTheTableOfConnectionsGrowsWithTheCPUsWithinBounds(t *testing.T) {
	t.Parallel()
	of := func(perCore, least int32) config.Conntrack {
		return config.Conntrack{MaxPerCore: &perCore, Min: &least}
	}
	for _, c := range []struct {
		limits config.Conntrack
		cpus   int
		want   int
	}{
		{of(32768, 131072), 2, 131072},
		{of(32768, 131072), 8, 262144},
		{of(32768, 131072), 40, 1048576},
		{of(0, 131072), 8, 0},
		{config.Conntrack{}, 8, 0},
		{of(1000, 0), 3, 3000},
	} {
		if got := conntrackMax(c.limits, c.cpus); got != c.want {
			t.Errorf("%+v with %d CPUs: %d, want %d", c.limits, c.cpus, got, c.want)
		}
	}
}
