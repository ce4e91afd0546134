package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

const unitPath = deployFolder + "/systemd/kube-splice.service"

// readUnit returns the settings of the shipped unit by their names.
func readUnit(t testing.TB) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(unitPath)
	check(t, err)
	settings := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, is := strings.Cut(strings.TrimSpace(line), "="); is && !strings.HasPrefix(name, "#") {
			settings[name] = append(settings[name], value)
		}
	}
	return settings
}

func TestUnitConfinesTheProgramAndLetsItDrain(t *testing.T) {
	unit := readUnit(t)
	if ambient, bounding := unit["AmbientCapabilities"], unit["CapabilityBoundingSet"]; len(ambient) != 1 || !slices.Equal(ambient, bounding) {
		t.Errorf("ambient %v, bounding set %v, want one and the same", ambient, bounding)
	}
	for name, want := range map[string]string{"DynamicUser": "yes", "NoNewPrivileges": "yes", "ProtectSystem": "strict"} {
		if got := unit[name]; !slices.Equal(got, []string{want}) {
			t.Errorf("%s is %v, want %s", name, got, want)
		}
	}
	var drain time.Duration
	for _, command := range append(slices.Clone(unit["ExecStartPre"]), unit["ExecStart"]...) {
		args := words(command)
		if !strings.HasSuffix(args[0], "kube-splice") {
			continue
		}
		flags := newRootCommand(environment{Stdout: io.Discard, Stderr: io.Discard}).Flags()
		check(t, flags.Parse(args[1:]))
		drain, _ = flags.GetDuration("drain-timeout")
	}
	stop, err := time.ParseDuration(unit["TimeoutStopSec"][0] + "s")
	check(t, err)
	if stop < drain+5*time.Second {
		t.Errorf("killed %v after SIGTERM, while connections may drain for %v", stop, drain)
	}
}

// systemd's own tool knows every setting; it needs no systemd that runs.
func TestUnitIsUnderstoodBySystemd(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("takes systemd-analyze")
	}
	text, err := os.ReadFile(unitPath)
	check(t, err)
	here := filepath.Join(t.TempDir(), "kube-splice.service")
	there := strings.ReplaceAll(string(text), "/usr/local/bin/kube-splice", "/bin/true") // it must exist
	check(t, os.WriteFile(here, []byte(there), 0o600))
	for _, args := range [][]string{
		{"verify", "--man=no", here},
		{"security", "--offline=true", "--no-pager", "--threshold=25", here}, // of 100
	} {
		if out, err := exec.Command(analyze, args...).CombinedOutput(); err != nil || args[0] == "verify" && strings.Contains(string(out), here) {
			t.Errorf("systemd-analyze %v: %v: %s", args, err, out)
		}
	}
}

func TestPodOfAnotherUserMayHaveTheCapabilitiesOfTheImage(t *testing.T) {
	var patch appsv1.DaemonSet
	readManifest(t, "nonroot/daemonset.yaml", &patch)
	container := patch.Spec.Template.Spec.Containers[0]
	security := container.SecurityContext
	if _, base := deployed(t); container.Name != base.Name || !*security.RunAsNonRoot || !*security.AllowPrivilegeEscalation ||
		!slices.Equal(security.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("%s: %+v", container.Name, security)
	}
	image, err := os.ReadFile("../../Dockerfile")
	check(t, err)
	var names []string
	for _, c := range security.Capabilities.Add {
		names = append(names, "cap_"+strings.ToLower(string(c)))
	}
	if given := setcap.FindSubmatch(image); given == nil || string(given[1]) != strings.Join(names, ",") {
		t.Errorf("the pod may have %v, the image's program has %s", names, given)
	}
}
