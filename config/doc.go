// Package config reads, completes, checks and writes the configuration file of
// kube-proxy: a KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1, as
// kube-proxy 1.37 has it. It also says which of its fields have no meaning here, and
// when the file changes.
//
// What it does not do: it puts nothing into force and knows no flags. Fields that
// other packages read in their own way (the port range, node port addresses, the
// IPVS scheduler) are left to their readers.
//
// It answers to pkg/proxy/apis/config and cmd/kube-proxy/app/options.go in Kubernetes.
package config
