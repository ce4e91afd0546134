package main

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/kube-splice/kube-splice/source"
)

func TestAPIServerIsAskedAsTheConfigurationSays(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	accepts := make(chan string, 1000)
	ln, err := c.Node.Listen("tcp", "127.0.0.1:8001")
	check(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		accepts <- r.Header.Get("Accept")
		http.Error(w, "not today", http.StatusServiceUnavailable)
	})}
	go func() { _ = server.Serve(ln) }() // until it is closed
	t.Cleanup(func() { _ = server.Close() })
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	check(t, os.WriteFile(kubeconfig, []byte(kubeconfigOf("http://127.0.0.1:8001")), 0o600))

	c.kubeconfig = kubeconfig
	p := c.launch("", "--kube-api-content-type=application/json")
	if accept := <-accepts; strings.Contains(accept, "protobuf") {
		t.Errorf("--kube-api-content-type=application/json asks for %s", accept)
	}
	p.finish(0)
	for len(accepts) > 0 {
		<-accepts
	}
	file := writeConfig(t, "clientConnection: {kubeconfig: "+kubeconfig+", acceptContentTypes: application/yaml}")
	c.kubeconfig = "/replaced/by/the/file"
	c.launch("", "--config", file)
	if accept := <-accepts; !strings.Contains(accept, "yaml") {
		t.Errorf("clientConnection.acceptContentTypes application/yaml asks for %s", accept)
	}
}

func TestMasterGoesBeforeTheServerOfTheKubeconfig(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	check(t, os.WriteFile(kubeconfig, []byte(kubeconfigOf("http://127.0.0.1:1")), 0o600))
	for args, want := range map[string]string{
		"--kubeconfig=" + kubeconfig:                              "http://127.0.0.1:1",
		"--kubeconfig=" + kubeconfig + " --master=http://[::1]:2": "http://[::1]:2",
		"--master=http://[::1]:3":                                 "http://[::1]:3",
		"--master=http://[::1]:4 --config=" + writeConfig(t, "clientConnection: {kubeconfig: "+kubeconfig+"}"): "http://[::1]:4",
	} {
		if config := clientOf(t, args); config.Host != want {
			t.Errorf("%s: the server is %s, want %s", args, config.Host, want)
		}
	}
}

// clientOf returns how flags make the API server asked.
func clientOf(t *testing.T, args string) *rest.Config {
	t.Helper()
	flags := newKubeProxyFlags()
	all := newFlagSet()
	for _, set := range []*pflag.FlagSet{flags.process, flags.fields} {
		all.AddFlagSet(set)
	}
	check(t, all.Parse(words(args)))
	settings, err := flags.settle()
	check(t, err)
	from, _, err := openServices(environment{}, options{kubeProxy: settings}, &observer{node: "node"}, slog.New(slog.DiscardHandler))
	check(t, err)
	return from.(*source.Kubernetes).Config
}

// kubeconfigOf is a kubeconfig file for a server that asks nobody who he is.
func kubeconfigOf(url string) string {
	return `{"kind":"Config","apiVersion":"v1","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c"}}],
		"clusters":[{"name":"c","cluster":{"server":"` + url + `"}}]}`
}

func TestRatesOfTheConfigurationAreThoseOfTheClient(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	check(t, os.WriteFile(kubeconfig, []byte(kubeconfigOf("http://127.0.0.1:1")), 0o600))
	for args, want := range map[string]struct {
		qps   float32
		burst int
	}{
		"--kubeconfig=" + kubeconfig: {5, 10},
		"--kubeconfig=" + kubeconfig + " --kube-api-qps=7.5 --kube-api-burst=20":                            {7.5, 20},
		"--config=" + writeConfig(t, "clientConnection: {kubeconfig: "+kubeconfig+", qps: 50, burst: 100}"): {50, 100},
	} {
		if config := clientOf(t, args); config.QPS != want.qps || config.Burst != want.burst {
			t.Errorf("%s: %v requests a second, %d at once; want %v", args, config.QPS, config.Burst, want)
		}
	}
}
