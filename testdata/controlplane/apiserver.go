package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

const (
	readyTimeout = 2 * time.Minute // about 4 s are usual on an idle machine
	pollInterval = 20 * time.Millisecond
)

// apiServer is a running kube-apiserver.
type apiServer struct {
	url   string
	admin *rest.Config // of this process: all rights, no rate limit
	stop  context.CancelFunc
	ended chan struct{}
}

// startAPIServer serves the objects in the store at etcdEndpoint. It may not be
// ready yet when this returns. fail is told if it ends by itself later. The
// caller closes it.
func startAPIServer(ctx context.Context, fail context.CancelCauseFunc, c config, creds *credentials, etcdEndpoint string) (*apiServer, error) {
	listener, err := net.Listen("tcp", netip.AddrPortFrom(c.bind, uint16(c.port)).String())
	if err != nil {
		return nil, fmt.Errorf("open the API port: %w", err)
	}
	// The server outlives ctx until close, for the controllers' last requests.
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	serve, admin, err := prepareAPIServer(ctx, listener, serverFlags(c, creds, etcdEndpoint))
	if err != nil {
		stop()
		return nil, errors.Join(err, listener.Close())
	}
	s := &apiServer{"https://" + listener.Addr().String(), admin, stop, make(chan struct{})}
	go s.run(ctx, fail, serve)
	return s, nil
}

// serverFlags is the command line of kube-apiserver.
func serverFlags(c config, creds *credentials, etcdEndpoint string) []string {
	return append([]string{
		"--etcd-servers=" + etcdEndpoint,
		"--cert-dir=" + creds.certDir,
		// Without this one it looks for a default route, and a bare network
		// namespace has none.
		"--advertise-address=" + c.bind.String(),
		// It refuses to publish a loopback address as its own endpoint.
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=" + c.serviceCIDR,
		"--service-node-port-range=" + c.nodePorts,
		"--authorization-mode=" + c.authorization,
		"--token-auth-file=" + creds.tokenFile,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + creds.accountKey,
		"--service-account-signing-key-file=" + creds.accountKey,
		// These wait for objects or taints that controllers of a whole cluster
		// take care of.
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,Priority,StorageObjectInUseProtection",
		// Without a grace it does not end watches, and waits a minute for them.
		"--shutdown-watch-termination-grace-period=1s",
		"--enable-priority-and-fairness=false",
		"--profiling=false",
	}, c.extra...)
}

// completeOptions is what kube-apiserver makes of its command line, but for its
// listener.
func completeOptions(ctx context.Context, listener net.Listener, args []string) (options.CompletedOptions, error) {
	opts := options.NewServerRunOptions()
	flags := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	named := opts.Flags()
	for _, set := range named.FlagSets {
		flags.AddFlagSet(set)
	}
	if err := flags.Parse(args); err != nil {
		return options.CompletedOptions{}, fmt.Errorf("parse its flags: %w", err)
	}
	address := listener.Addr().(*net.TCPAddr)
	opts.SecureServing.Listener = listener
	opts.SecureServing.BindAddress, opts.SecureServing.BindPort = address.IP, address.Port
	if err := opts.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return options.CompletedOptions{}, fmt.Errorf("set its feature gates: %w", err)
	}
	completed, err := opts.Complete(ctx)
	if err != nil {
		return options.CompletedOptions{}, fmt.Errorf("complete its options: %w", err)
	}
	if err := utilerrors.NewAggregate(completed.Validate()); err != nil {
		return options.CompletedOptions{}, fmt.Errorf("validate its options: %w", err)
	}
	return completed, nil
}

// prepareAPIServer builds a kube-apiserver on listener from its command line, and
// a client's configuration for use inside this process.
func prepareAPIServer(ctx context.Context, listener net.Listener, args []string) (serve func(context.Context) error, admin *rest.Config, err error) {
	completed, err := completeOptions(ctx, listener, args)
	if err != nil {
		return nil, nil, err
	}
	settings, err := app.NewConfig(completed)
	if err != nil {
		return nil, nil, fmt.Errorf("configure it: %w", err)
	}
	complete, err := settings.Complete()
	if err != nil {
		return nil, nil, fmt.Errorf("complete its configuration: %w", err)
	}
	server, err := app.CreateServerChain(complete)
	if err != nil {
		return nil, nil, fmt.Errorf("build it: %w", err)
	}
	prepared, err := server.PrepareRun()
	if err != nil {
		return nil, nil, fmt.Errorf("prepare it: %w", err)
	}
	return prepared.Run, server.GenericAPIServer.LoopbackClientConfig, nil
}

// run serves until ctx ends.
func (s *apiServer) run(ctx context.Context, fail context.CancelCauseFunc, serve func(context.Context) error) {
	defer close(s.ended)
	if err := serve(ctx); err != nil {
		fail(fmt.Errorf("serve the API: %w", err))
	} else if ctx.Err() == nil {
		fail(errors.New("kube-apiserver ended by itself"))
	}
}

// awaitReady returns when /readyz answers well and the namespace default exists,
// or the server has ended. A signal does not cut it short: a server that is
// stopped while it starts does not end but crash.
func (s *apiServer) awaitReady(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(s.admin)
	if err != nil {
		return fmt.Errorf("make a client of the API server: %w", err)
	}
	var last error
	err = wait.PollUntilContextTimeout(context.WithoutCancel(ctx), pollInterval, readyTimeout, true, func(ctx context.Context) (bool, error) {
		if last = client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); last == nil {
			_, last = client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
		}
		return last == nil || isClosed(s.ended), nil
	})
	if err != nil {
		return fmt.Errorf("wait %v for the API server to be ready: %w", readyTimeout, last)
	}
	return context.Cause(ctx)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// close ends the server and returns when its last request is answered.
func (s *apiServer) close() {
	s.stop()
	<-s.ended
}
