package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/kube-splice/kube-splice/balancer"
	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

// services is where Services come from: the types of package source.
type services interface {
	Run(ctx context.Context, publish func(*service.Snapshot)) error
}

// openServices returns the source that the options name, and that name.
func openServices(env environment, o options, ob *observer, log *slog.Logger) (services, string, error) {
	if o.manifests != "" {
		return &source.Manifests{Path: o.manifests, Stdin: env.Stdin, NodeName: ob.node, KnownBalancer: knownBalancer, Log: log}, o.manifests, nil
	}
	source.RouteClientLogs(log)
	client := o.kubeProxy.config.ClientConnection
	config, err := source.ClusterAccess(o.kubeProxy.flags.master, client.Kubeconfig)
	if errors.Is(err, source.ErrNoCluster) {
		return nil, "", usagef("no source of Services: give --manifests PATH (a file or folder, or - for standard input) or --kubeconfig FILE; this is no pod of a cluster")
	}
	if err != nil {
		return nil, "", err
	}
	config.QPS, config.Burst = client.QPS, int(client.Burst)
	config.ContentType, config.AcceptContentTypes = client.ContentType, client.AcceptContentTypes
	return &source.Kubernetes{
		Config: config, NodeName: ob.node, KnownBalancer: knownBalancer,
		Events: ob.events.to, Requests: ob.metrics, Log: log,
	}, config.Host, nil
}

func knownBalancer(name string) bool {
	_, ok := balancer.Lookup(name)
	return ok
}
