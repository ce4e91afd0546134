package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/kube-splice/kube-splice/service"
)

// HealthCheck is one Service's healthCheckNodePort in one family. A load balancer
// asks it whether this node has endpoints of the Service.
type HealthCheck struct {
	Namespace, Service string
	Family             service.Family
	Port               uint16
	LocalEndpoints     int // ready endpoints on this node; terminating ones do not count
}

// NodePortHealthConfig is the configuration of a NodePortHealth; its zero value is
// usable.
type NodePortHealthConfig struct {
	// Healthy reports whether the proxy itself does its work; nil means that it
	// always does. Health.Healthy is meant for it.
	Healthy func() bool
	// Addresses returns this node's addresses of a family to listen on, as
	// nodePortAddresses has them now; the unspecified one stands for all. Nil: on all.
	Addresses func(service.Family) ([]netip.Addr, error)
	// Failed is told of a server that cannot be opened, once until it can. May be
	// nil.
	Failed func(HealthCheck, error)
}

// NodePortHealth answers at the healthCheckNodePort of every Service that has one.
// Sync and Close belong to one goroutine, its owner's.
type NodePortHealth struct {
	cfg     NodePortHealthConfig
	servers map[HealthCheck]*checkServer // by HealthCheck without its count
	failing map[HealthCheck]bool
	serving sync.WaitGroup
}

// NewNodePortHealth returns a NodePortHealth without servers. Close ends it.
func NewNodePortHealth(cfg NodePortHealthConfig) *NodePortHealth {
	if cfg.Healthy == nil {
		cfg.Healthy = func() bool { return true }
	}
	if cfg.Addresses == nil {
		cfg.Addresses = func(f service.Family) ([]netip.Addr, error) { return []netip.Addr{f.Unspecified()}, nil }
	}
	return &NodePortHealth{cfg: cfg, servers: map[HealthCheck]*checkServer{}}
}

// Sync closes the servers of checks that are gone, opens those of new ones, opens
// those anew whose addresses have changed, and gives every one its count. The error
// names what could not be opened; the next Sync tries it again.
func (n *NodePortHealth) Sync(checks []HealthCheck) error {
	wanted := make(map[HealthCheck]bool, len(checks))
	for _, check := range checks {
		wanted[identity(check)] = true
	}
	for id, server := range n.servers {
		if !wanted[id] {
			server.close()
			delete(n.servers, id)
		}
	}
	var errs []error
	failing := map[HealthCheck]bool{}
	addresses := onceEach(n.cfg.Addresses)
	for _, check := range checks {
		id := identity(check)
		server, err := n.server(id, addresses)
		if err != nil {
			errs = append(errs, err)
			failing[id] = true
			if !n.failing[id] && n.cfg.Failed != nil {
				n.cfg.Failed(check, err)
			}
			continue
		}
		server.local.Store(int64(check.LocalEndpoints))
	}
	n.failing = failing
	return errors.Join(errs...)
}

// Close closes every server and returns when none serves any more.
func (n *NodePortHealth) Close() {
	_ = n.Sync(nil) // opens nothing, so cannot fail
	n.serving.Wait()
}

// identity tells checks apart: a Service that changes its port gets another server.
func identity(check HealthCheck) HealthCheck {
	check.LocalEndpoints = 0
	return check
}

// server returns the server of a check, opened if need be.
func (n *NodePortHealth) server(id HealthCheck, of func(service.Family) ([]netip.Addr, error)) (*checkServer, error) {
	addresses, err := of(id.Family)
	if err != nil {
		return nil, fmt.Errorf("answer health checks of %s/%s: %w", id.Namespace, id.Service, err)
	}
	if server := n.servers[id]; server != nil {
		if slices.Equal(server.addresses, addresses) {
			return server, nil
		}
		server.close()
		delete(n.servers, id)
	}
	server := &checkServer{check: id, healthy: n.cfg.Healthy, addresses: addresses}
	server.http = newHTTPServer(server, slog.New(slog.DiscardHandler))
	for _, addr := range addresses {
		ln, err := net.Listen(network(id.Family), netip.AddrPortFrom(addr, id.Port).String())
		if err != nil {
			server.close()
			return nil, fmt.Errorf("answer health checks of %s/%s: %w", id.Namespace, id.Service, err)
		}
		server.listeners = append(server.listeners, ln)
		n.serving.Go(func() { _ = server.http.Serve(ln) }) // ends when it is closed
	}
	n.servers[id] = server
	return server, nil
}

// onceEach returns a function that asks addresses once for each family.
func onceEach(addresses func(service.Family) ([]netip.Addr, error)) func(service.Family) ([]netip.Addr, error) {
	four := sync.OnceValues(func() ([]netip.Addr, error) { return addresses(service.IPv4) })
	six := sync.OnceValues(func() ([]netip.Addr, error) { return addresses(service.IPv6) })
	return func(f service.Family) ([]netip.Addr, error) {
		if f == service.IPv6 {
			return six()
		}
		return four()
	}
}

func network(f service.Family) string {
	if f == service.IPv6 {
		return "tcp6"
	}
	return "tcp4"
}

// checkServer answers for one check, on any path.
type checkServer struct {
	check     HealthCheck
	healthy   func() bool
	local     atomic.Int64
	http      *http.Server
	addresses []netip.Addr
	listeners []net.Listener
}

// close frees the ports before it returns. The server alone would leave open a
// listener that it has not begun to serve.
func (s *checkServer) close() {
	for _, ln := range s.listeners {
		_ = ln.Close()
	}
	_ = s.http.Close()
}

// checkReport is the body of an answer, as kube-proxy's.
type checkReport struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int64 `json:"localEndpoints"`
	ServiceProxyHealthy bool  `json:"serviceProxyHealthy"`
}

func (s *checkServer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	report := checkReport{LocalEndpoints: s.local.Load(), ServiceProxyHealthy: s.healthy()}
	report.Service.Namespace, report.Service.Name = s.check.Namespace, s.check.Service
	code := http.StatusServiceUnavailable
	if report.LocalEndpoints > 0 && report.ServiceProxyHealthy {
		code = http.StatusOK
	}
	// What load balancers that weigh their targets go by.
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(report.LocalEndpoints, 10))
	body, _ := json.MarshalIndent(report, "", "\t") // strings and numbers always encode
	writeJSON(w, code, body)
}
