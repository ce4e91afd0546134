package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kube-splice/kube-splice/lab"
)

// deployFolder holds the manifests that are shipped.
const deployFolder = "../../deploy"

// readManifest decodes a manifest that holds one object, without unknown fields.
func readManifest(t testing.TB, path string, object any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deployFolder, path))
	check(t, err)
	text, err = yaml.ToJSON(text)
	check(t, err)
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.DisallowUnknownFields()
	check(t, decoder.Decode(object))
}

// deployed returns the pod that the DaemonSet makes, and the container that stays.
func deployed(t testing.TB) (corev1.PodSpec, corev1.Container) {
	t.Helper()
	var set appsv1.DaemonSet
	readManifest(t, "base/daemonset.yaml", &set)
	pod := set.Spec.Template.Spec
	if len(pod.Containers) != 1 {
		t.Fatalf("%d containers, want one", len(pod.Containers))
	}
	return pod, pod.Containers[0]
}

// confined is a setup for launch that runs the program as the container runtime does:
// as root with these capabilities and no way to get more, on a root file system that
// is read-only but for the volumes mounted writable.
func confined(container corev1.Container, capabilities []corev1.Capability) string {
	var bounds, mounts strings.Builder
	for _, c := range capabilities {
		fmt.Fprintf(&bounds, ",+%s", strings.ToLower(string(c)))
	}
	for _, m := range container.VolumeMounts {
		if !m.ReadOnly {
			fmt.Fprintf(&mounts, "touch %[1]s; mount --bind %[1]s %[1]s; ", m.MountPath)
		}
	}
	script := `mount -t tmpfs tmpfs /run; ` + mounts.String() +
		`mount -o remount,bind,ro /run; mount -o remount,bind,ro /; ` +
		`exec setpriv --no-new-privs --bounding-set=-all` + bounds.String() + ` "$0" "$@"`
	return `unset XTABLES_LOCKFILE; exec unshare --mount sh -ec '` + script + `' "$0" "$@"`
}

func without(all []corev1.Capability, one corev1.Capability) []corev1.Capability {
	return slices.DeleteFunc(slices.Clone(all), func(c corev1.Capability) bool { return c == one })
}

// Nothing of the connection log: it would be one more file to write.
var unlogged = []string{"--connection-log", "off", "--connection-log-file", ""}

func TestDeployedContainerHasTheCapabilitiesItNeedsAndNoOthers(t *testing.T) {
	_, container := deployed(t)
	security := container.SecurityContext
	if !slices.Equal(security.Capabilities.Drop, []corev1.Capability{"ALL"}) || !*security.ReadOnlyRootFilesystem ||
		*security.AllowPrivilegeEscalation || security.Privileged != nil {
		t.Fatalf("the container is not confined: %+v", security)
	}
	all := security.Capabilities.Add
	const below1024, byNode = lab.NodeSecondIP + ":80", lab.NodeIP + ":30080"
	forEachBackend(t, func(c *cluster, p *programs) {
		c.serveAll("pod-a")
		c.apply("web", newService("web", "10.96.0.10", nodePort(30080), externalIPs(lab.NodeSecondIP)), newSlice("web", []string{podA}))
		serves := func(capabilities []corev1.Capability, addresses ...string) *program {
			c.t.Helper()
			program := c.launch(p.setup()+"\n"+confined(container, capabilities), unlogged...)
			program.waitReady()
			for _, address := range addresses {
				wantAnswer(c.t, c.Outside, address, "pod-a")
			}
			return program
		}
		fails := func(capabilities []corev1.Capability) {
			c.t.Helper()
			said, status := c.runToEnd(p.setup()+"\n"+confined(container, capabilities), append(unlogged, "--manifests", c.manifests)...)
			if status != exitError || !strings.Contains(said, "CAP_NET_ADMIN and CAP_NET_RAW") {
				c.t.Errorf("with %v: status %d, said %q", capabilities, status, said)
			}
		}
		program := serves(all, webAddress, byNode, below1024)
		check(c.t, wantSaid(program, "level=ERROR", 0))
		program.terminate(c)

		fails(without(all, "NET_ADMIN"))
		program = serves(without(all, "NET_BIND_SERVICE"), webAddress, byNode)
		check(c.t, wantSaid(program, "cannot open externalIP "+below1024, 1))
		program.terminate(c)
		if p.backend == "legacy" {
			fails(without(all, "NET_RAW"))
		} else {
			serves(without(all, "NET_RAW"), webAddress, byNode, below1024)
		}
		if len(all) != 3 {
			c.t.Errorf("%v: say here what is lost without each", all)
		}
	})
}

func TestDeployedPodHasTimeToDrain(t *testing.T) {
	pod, container := deployed(t)
	for _, arg := range container.Args {
		text, is := strings.CutPrefix(arg, "--drain-timeout=")
		if !is {
			continue
		}
		drain, err := time.ParseDuration(text)
		check(t, err)
		if grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second; grace < drain+5*time.Second {
			t.Errorf("killed %v after SIGTERM, while connections may drain for %v", grace, drain)
		}
		return
	}
	t.Error("the command line does not say --drain-timeout")
}

func TestKustomizationsListTheFilesBesideThem(t *testing.T) {
	folders, err := os.ReadDir(deployFolder)
	check(t, err)
	for _, folder := range folders {
		if folder.Name() == "systemd" {
			continue // has no kustomization
		}
		var k struct {
			APIVersion, Kind string
			Resources        []string
			Patches          []struct{ Path string }
		}
		readManifest(t, filepath.Join(folder.Name(), "kustomization.yaml"), &k)
		named := []string{"kustomization.yaml"}
		for _, resource := range k.Resources {
			if resource != "../base" {
				named = append(named, resource)
			}
		}
		for _, patch := range k.Patches {
			named = append(named, patch.Path)
		}
		entries, err := os.ReadDir(filepath.Join(deployFolder, folder.Name()))
		check(t, err)
		var there []string
		for _, entry := range entries {
			there = append(there, entry.Name())
		}
		slices.Sort(named)
		if !slices.Equal(named, there) {
			t.Errorf("deploy/%s has %v, its kustomization names %v", folder.Name(), there, named)
		}
	}
}
