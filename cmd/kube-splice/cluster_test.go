//go:build cluster

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// controlPlanePath names the program of testdata/controlplane.
const controlPlanePath = "KUBE_SPLICE_CONTROLPLANE"

const (
	apiPort = 6443
	// apiPatience bounds the start of a control plane, which is 4 s on an idle machine.
	apiPatience = time.Minute
)

// served is a cluster whose objects a real API server holds, which listens on the
// node. Its namespace default is the test's alone.
type served struct {
	*cluster
	*api
	dir string // of the control plane
	now *controlPlane
}

// newServed returns a cluster with a running API server that knows the node.
func newServed(t *testing.T) *served {
	t.Helper()
	return newServedIn(newCluster(t))
}

// newServedIn gives a cluster a running API server that knows the node.
func newServedIn(c *cluster) *served {
	t := c.t
	t.Helper()
	s := &served{cluster: c}
	var err error
	s.dir, err = os.MkdirTemp("", "cp") // short, for the sockets in it
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(s.dir)) })
	s.startAPI()
	// The control plane removes its own while it is away.
	text, err := os.ReadFile(filepath.Join(s.dir, "kubeconfig"))
	check(t, err)
	s.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	check(t, os.WriteFile(s.kubeconfig, text, 0o600))
	s.api = newAPI(t, s.kubeconfig, s.Node)
	s.addNode()
	return s
}

// addNode creates this node's object.
func (s *served) addNode() {
	s.t.Helper()
	s.create(nodeObjects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
	s.patch(nodeObjects+"/node/status", `{"status":{"addresses":[{"type":"InternalIP","address":"`+lab.NodeIP+`"}]}}`)
}

// controlPlane is a running API server with its store and controllers.
type controlPlane struct {
	cmd     *exec.Cmd
	out     watchedOutput
	log     bytes.Buffer
	started chan error
	exited  chan struct{}
}

// startAPI runs the control plane until the test ends, or until killAPI, and waits
// until it is ready.
func (s *served) startAPI() {
	s.t.Helper()
	c := &controlPlane{
		out:     watchedOutput{word: "ready ", found: make(chan struct{})},
		started: make(chan error, 1), exited: make(chan struct{}),
	}
	c.cmd = exec.Command(controlPlaneProgram(s.t), "-dir", s.dir, "-bind", lab.NodeIP,
		"-port", strconv.Itoa(apiPort), "-service-cidr", lab.ServiceCIDR, "-authorization-mode", "RBAC",
		"-extra=--allow-privileged=true") // as every installer has it
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	go c.run(s.Node)
	check(s.t, <-c.started)
	s.now = c
	s.t.Cleanup(func() { c.end(syscall.SIGTERM) })
	select {
	case <-c.out.found:
	case <-c.exited:
		s.t.Fatalf("the control plane ended: %s", &c.log)
	case <-time.After(apiPatience):
		c.end(syscall.SIGKILL)
		s.t.Fatalf("the control plane is not ready: %s", &c.log)
	}
}

// controlPlaneProgram returns the path of the control plane's program.
func controlPlaneProgram(t testing.TB) string {
	t.Helper()
	path := os.Getenv(controlPlanePath)
	if path == "" {
		path = "../../bin/controlplane"
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("no control plane: %v; make test-cluster builds it", err)
	}
	return path
}

// run is the goroutine of the thread that the control plane is started by: when
// that thread ends, the kernel ends the control plane.
func (c *controlPlane) run(node *lab.Namespace) {
	defer close(c.exited)
	_ = node.Do(func() error {
		err := c.cmd.Start()
		c.started <- err
		if err == nil {
			_ = c.cmd.Wait() // the status is in ProcessState
		}
		return nil
	})
}

// end sends a signal and waits for the end. It may be called again.
func (c *controlPlane) end(signal syscall.Signal) {
	_ = c.cmd.Process.Signal(signal)
	select {
	case <-c.exited:
	case <-time.After(patience):
		_ = c.cmd.Process.Kill()
		<-c.exited
	}
}

// killAPI ends the control plane as a crash does.
func (s *served) killAPI() {
	s.t.Helper()
	s.now.end(syscall.SIGKILL)
	conn, err := s.Node.Dial("tcp", fmt.Sprintf("%s:%d", lab.NodeIP, apiPort), time.Second)
	if err == nil {
		_ = conn.Close()
		s.t.Fatal("somebody still answers at the API server's address")
	}
}
