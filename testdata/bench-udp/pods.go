package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/kube-splice/kube-splice/lab"
)

// The lab's names and addresses for a client pod that asks two Services: ours by
// kube-splice's rules, the other by one rule of the same kind, which leads to nginx.
const (
	labPrefix                 = "bench-"
	podAddr                   = "10.244.1.11"
	ourService, nginxService  = "10.96.0.10", "10.96.0.11"
	servicePort               = 53
	nodeSpace, clients, podIn = labPrefix + "node", labPrefix + "client", labPrefix + "pod-a"
)

// betweenPods compares the whole program: the load comes from a pod by REDIRECT, with
// conntrack, and the endpoint is another pod.
func (b *run) betweenPods() (err error) {
	b.stop() // nobody else takes part
	l, err := lab.New(lab.Config{Pods: 1, OneNode: true, Prefix: labPrefix})
	if err != nil {
		return err
	}
	defer l.Close()
	defer b.stop() // before the lab is closed
	for _, n := range []*lab.Namespace{l.Node, l.Pod("client").Namespace} {
		if err := n.Do(func() error { return os.WriteFile(portRange, []byte(ports), 0) }); err != nil {
			return err
		}
	}
	backend := fmt.Sprintf("%s:%d", podAddr, echoPort)
	if _, err := b.start(in(podIn, b.program("echo", backend))); err != nil {
		return err
	}
	nginx, err := b.startNginx(nodeSpace, fmt.Sprintf("0.0.0.0:%d", nginxPort), backend)
	if err != nil {
		return err
	}
	lead := exec.Command("iptables", "-w", "-t", "nat", "-A", "PREROUTING", "-d", nginxService, "-p", "udp",
		"--dport", fmt.Sprint(servicePort), "-j", "REDIRECT", "--to-ports", fmt.Sprint(nginxPort))
	if out, err := in(nodeSpace, lead).CombinedOutput(); err != nil {
		return fmt.Errorf("lead clients to nginx: %w: %s", err, out)
	}
	ours, err := b.startKubeSplice()
	if err != nil {
		return err
	}
	b.clients, b.prefix = clients, "pods: "
	b.proxies = []proxy{{"nginx", fmt.Sprintf("%s:%d", nginxService, servicePort), nginx}, {"kube-splice", fmt.Sprintf("%s:%d", ourService, servicePort), ours}}
	if err := b.ready(); err != nil {
		return err
	}
	return b.measure(loads)
}

func (b *run) startKubeSplice() (*exec.Cmd, error) {
	path := filepath.Join(b.dir, "service.yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, manifest, ourService, servicePort, echoPort, podAddr), 0o644); err != nil {
		return nil, err
	}
	return b.start(in(nodeSpace, exec.Command("../../bin/kube-splice", "--manifests", path, "--hostname-override", "node",
		"--udp-timeout", idle.String(), "--healthz-bind-address", "", "--metrics-bind-address", "")))
}

const manifest = `apiVersion: v1
kind: Service
metadata: {name: echo, namespace: default}
spec:
  clusterIP: %s
  ports: [{name: echo, port: %d, protocol: UDP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: echo-1, namespace: default, labels: {kubernetes.io/service-name: echo}}
addressType: IPv4
ports: [{name: echo, port: %d, protocol: UDP}]
endpoints: [{addresses: [%s]}]
`
