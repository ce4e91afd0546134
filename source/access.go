package source

import (
	"errors"
	"fmt"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ErrNoCluster says that nothing tells where an API server is.
var ErrNoCluster = errors.New("not in a cluster, and no kubeconfig given")

// ClusterAccess returns how to reach the API server: as a kubeconfig file says, at
// master instead of the server named there if master is not empty, or, with neither,
// as a pod of the cluster is told by its environment and service account, whose token
// is read again when it is renewed. Without any of these it is ErrNoCluster.
func ClusterAccess(master, kubeconfig string) (*rest.Config, error) {
	if master == "" && kubeconfig == "" {
		if os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
			return nil, ErrNoCluster
		}
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("use the pod's service account: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig},
		overrides(master)).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("use kubeconfig %q: %w", kubeconfig, err)
	}
	return config, nil
}

func overrides(master string) *clientcmd.ConfigOverrides {
	o := &clientcmd.ConfigOverrides{}
	o.ClusterInfo.Server = master
	return o
}
