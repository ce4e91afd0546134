// Command controlplane is a Kubernetes control plane in one process, for tests:
// etcd, kube-apiserver, and the controllers that turn Services and Pods into
// EndpointSlices (endpointslice, endpoint, endpointslicemirroring) and that clean
// up behind them (namespace, garbage collector for what a Service owns). All of
// it is Kubernetes' own code, linked in as modules.
//
// It is no cluster. There is no kubelet, no scheduler, no workload controller:
// whoever tests creates the Node objects, binds Pods to them (spec.nodeName) and
// patches the status that a kubelet would report. A bound Pod that is deleted
// keeps terminating until it is deleted with a grace period of 0, and its
// namespace until then. It is not safe either: etcd does not sync to disk, so
// objects outlive the process and kill -9, but not the machine.
//
// When all of it answers it writes DIR/kubeconfig (an administrator's) and prints
// "ready DIR/kubeconfig" on standard output; logs go to standard error. SIGTERM
// and SIGINT end it with status 0. Started again in the same DIR with the same
// address it holds the same objects, and honours the same tokens.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
)

// config is what the command line says.
type config struct {
	dir           string        // absolute
	bind          netip.Addr    // the API server's only address
	port          uint          // 0 lets the system choose
	serviceCIDR   string        // one range, or two of different families with a comma
	nodePorts     string        // FROM-TO
	authorization string        // modes, with commas
	endpointBatch time.Duration // how long endpoint controllers gather changes
	extra         []string      // further flags of kube-apiserver
}

func main() {
	c, err := parseFlags(os.Args[1:])
	if err == nil {
		err = run(c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "controlplane:", err)
		os.Exit(1)
	}
}

func parseFlags(args []string) (config, error) {
	var c config
	flags := flag.NewFlagSet("controlplane", flag.ExitOnError)
	flags.StringVar(&c.dir, "dir", "", "folder of the data, keys and kubeconfig; made if missing, kept at the end")
	flags.TextVar(&c.bind, "bind", netip.MustParseAddr("127.0.0.1"), "`address` the API server listens on")
	flags.UintVar(&c.port, "port", 6443, "port the API server listens on; 0 is any free one")
	flags.StringVar(&c.serviceCIDR, "service-cidr", "10.96.0.0/16", "`range` of cluster IPs; dual stack with a comma")
	flags.StringVar(&c.nodePorts, "node-ports", "30000-32767", "`range` of node ports")
	flags.StringVar(&c.authorization, "authorization-mode", "AlwaysAllow", "`modes` of kube-apiserver, for example RBAC")
	flags.DurationVar(&c.endpointBatch, "endpoint-batch", 0, "how long the endpoint controllers gather changes (a cluster: 500ms)")
	flags.Func("extra", "one more `flag` of kube-apiserver, as in -extra=--v=2; may be repeated", func(value string) error {
		c.extra = append(c.extra, value)
		return nil
	})
	flags.Parse(args) // ends the program at a bad flag
	if flags.NArg() > 0 {
		return config{}, fmt.Errorf("unknown argument %q; all settings are flags, see -help", flags.Arg(0))
	}
	if c.dir == "" {
		return config{}, errors.New("-dir is missing: name a folder for data, keys and kubeconfig")
	}
	if c.port > math.MaxUint16 {
		return config{}, fmt.Errorf("-port %d is more than %d", c.port, math.MaxUint16)
	}
	if c.bind.IsUnspecified() {
		return config{}, fmt.Errorf("-bind %v is no address clients can be told; name one of this machine's", c.bind)
	}
	dir, err := filepath.Abs(c.dir)
	if err != nil {
		return config{}, fmt.Errorf("resolve -dir: %w", err)
	}
	c.dir = dir
	return c, nil
}

// run holds the control plane until a signal ends it (nil) or a part of it fails.
// The parts end in the reverse of the order in which they need each other.
func run(c config) error {
	lock, err := lockDir(c.dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	stopped, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	context.AfterFunc(stopped, stop) // a second signal kills
	ctx, fail := context.WithCancelCause(stopped)
	defer fail(nil)

	err = hold(ctx, fail, c)
	if stopped.Err() != nil {
		return nil
	}
	return err
}

// hold starts the parts one after another and keeps them until ctx ends. Its error
// says why; fail ends ctx, and is for a part that fails later.
func hold(ctx context.Context, fail context.CancelCauseFunc, c config) error {
	// Clients of this process do not heed warnings about old APIs.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	creds, err := openCredentials(c.dir)
	if err != nil {
		return err
	}
	store, err := startEtcd(ctx, fail, filepath.Join(c.dir, "etcd"))
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	defer store.close()

	server, err := startAPIServer(ctx, fail, c, creds, store.endpoint)
	if err != nil {
		return fmt.Errorf("start kube-apiserver: %w", err)
	}
	defer server.close()
	if err := server.awaitReady(ctx); err != nil {
		return err
	}

	controllers, err := startControllers(ctx, server.admin, c.endpointBatch)
	if err != nil {
		return fmt.Errorf("start controllers: %w", err)
	}
	defer controllers.close()
	if err := controllers.awaitSynced(ctx); err != nil {
		return err
	}

	kubeconfig, err := creds.writeKubeconfig(server.url)
	if err != nil {
		return err
	}
	fmt.Println("ready", kubeconfig)
	<-ctx.Done()
	return context.Cause(ctx)
}

// lockDir makes the folder, and keeps a second control plane out of it until the
// file is closed or the process ends, however it ends.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make -dir: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of -dir: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock -dir %s (is another control plane running in it?): %w", dir, err), lock.Close())
	}
	return lock, nil
}
