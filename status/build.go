package status

import (
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// kubernetesVersion is the version of Kubernetes whose kube-proxy this one stands for.
// Alerts on nodes that lag behind compare its major and minor numbers.
const kubernetesVersion = "v1.37.2"

// buildInfo returns kubernetes_build_info, with our own version behind the plus as
// distributions of Kubernetes do it, and kubesplice_build_info.
func buildInfo(version string) []prometheus.Collector {
	vcs := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			vcs[setting.Key] = setting.Value
		}
		if version == "" {
			version = info.Main.Version
		}
	}
	tree := map[string]string{"true": "dirty", "false": "clean"}[vcs["vcs.modified"]]
	number := strings.Split(strings.TrimPrefix(kubernetesVersion, "v"), ".")
	return []prometheus.Collector{
		constant("kubernetes_build_info", "The build, and the Kubernetes it stands for; always 1.", prometheus.Labels{
			"major": number[0], "minor": number[1], "git_version": kubernetesVersion + "+kube-splice." + strings.TrimPrefix(version, "v"),
			"git_commit": vcs["vcs.revision"], "git_tree_state": tree, "build_date": vcs["vcs.time"],
			"go_version": runtime.Version(), "compiler": runtime.Compiler, "platform": runtime.GOOS + "/" + runtime.GOARCH,
		}),
		constant("kubesplice_build_info", "The build; always 1.", prometheus.Labels{
			"version": version, "revision": vcs["vcs.revision"], "go_version": runtime.Version(),
		}),
	}
}

func constant(name, help string, labels prometheus.Labels) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 { return 1 })
}
