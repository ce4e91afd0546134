package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/config"
	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

// services is where Services come from: the types of package source.
type services interface {
	Run(ctx context.Context, publish func(*service.Snapshot)) error
}

// openServices returns the source that the options name, and that name.
func openServices(env environment, o options, ob *observer, log *slog.Logger) (services, string, error) {
	noExternalIPs := !config.AllowsExternalIPs(o.kubeProxy.config)
	if o.manifests != "" {
		return &source.Manifests{
			Path: o.manifests, Stdin: env.Stdin, NodeName: ob.node, KnownBalancer: knownBalancer, NoExternalIPs: noExternalIPs, Log: log,
		}, o.manifests, nil
	}
	source.RouteClientLogs(log)
	client := o.kubeProxy.config.ClientConnection
	access, err := source.ClusterAccess(o.kubeProxy.flags.master, client.Kubeconfig)
	if errors.Is(err, source.ErrNoCluster) {
		return nil, "", usagef("no source of Services: give --manifests PATH (a file or folder, or - for standard input) or --kubeconfig FILE; this is no pod of a cluster")
	}
	if err != nil {
		return nil, "", err
	}
	access.QPS, access.Burst = client.QPS, int(client.Burst)
	access.ContentType, access.AcceptContentTypes = client.ContentType, client.AcceptContentTypes
	return &source.Kubernetes{
		Config: access, NodeName: ob.node, KnownBalancer: knownBalancer, NoExternalIPs: noExternalIPs,
		MinInterval: o.updateEvery, Events: ob.events.to, Requests: ob.metrics, Log: log,
	}, access.Host, nil
}

func knownBalancer(name string) bool {
	_, ok := balancer.Lookup(name)
	return ok
}
