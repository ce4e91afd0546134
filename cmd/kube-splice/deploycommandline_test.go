package main

import (
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestDeployedCommandLinesAreOurs(t *testing.T) {
	pod, _ := deployed(t)
	for _, container := range append(append([]corev1.Container{}, pod.InitContainers...), pod.Containers...) {
		flags := newRootCommand(environment{Stdout: io.Discard, Stderr: io.Discard}).Flags()
		if err := flags.Parse(container.Args); err != nil {
			t.Errorf("container %s: %v", container.Name, err)
		}
		for _, arg := range container.Args {
			path, is := strings.CutPrefix(arg, "--config=")
			if !is {
				continue
			}
			mounted := false
			for _, m := range container.VolumeMounts {
				mounted = mounted || strings.HasPrefix(path, m.MountPath+"/")
			}
			if !mounted {
				t.Errorf("container %s: nothing is mounted where --config=%s is", container.Name, path)
			}
		}
	}
}
