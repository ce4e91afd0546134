package main

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
	"github.com/kube-splice/kube-splice/status"
)

// actionStart is kube-proxy's word for what it does when it starts.
const actionStart = "StartKubeProxy"

// events tells the readers of Kubernetes' Events what happens here. Reasons and
// actions are kube-proxy's where it has them.
type events struct {
	to   *source.Events // nil: nobody
	node string
}

// started says that the proxy starts.
func (e events) started() {
	e.to.OnNode(source.Event{Reason: "Starting", Action: actionStart})
}

// notServing returns what says that a server of package status cannot be reached.
func (e events) notServing(reason string) func(error) {
	return func(err error) {
		e.to.OnNode(source.Event{Warning: true, Reason: reason, Action: actionStart, Note: err.Error()})
	}
}

// noHealthCheck says that a Service's healthCheckNodePort cannot be served.
func (e events) noHealthCheck(c status.HealthCheck, err error) {
	note := fmt.Sprintf("node %s failed to start healthcheck %q on port %d: %v", e.node, c.Namespace+"/"+c.Service, c.Port, err)
	e.to.OnService(c.Namespace, c.Service, source.Event{Warning: true, Reason: "FailedToStartServiceHealthcheck", Action: source.ActionListen, Note: note})
}

// trouble says what cannot be done for a Service port; it is for proxy.Config.Trouble.
func (e events) trouble(name service.Name, what string, err error) {
	reason := "FailedToServe"
	if errors.Is(err, syscall.EADDRINUSE) {
		reason = source.PortConflict
	}
	note := fmt.Sprintf("node %s cannot %s: %v", e.node, what, err)
	e.to.OnService(name.Namespace, name.Service, source.Event{Warning: true, Reason: reason, Action: source.ActionListen, Note: note})
}
