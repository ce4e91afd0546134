// Package status is what the proxy tells people over HTTP: whether it is healthy,
// and what it has counted.
//
//   - [Health] answers /healthz and /livez from what the daemon loop says of its
//     updates and of the node;
//   - [NodePortHealth] answers load balancers at the healthCheckNodePort of every
//     Service that has one;
//   - [Metrics] takes events, reads the proxy's counters at every scrape, and answers
//     /metrics, /configz and the like.
//
// Health and Metrics are handlers; a [Server] binds an address for one, and tries
// again while the address is taken.
//
// The package decides nothing and keeps no Service: it is told whole states and single
// events, and forgets a Service with the Snapshot that no longer has it. No label
// ever holds a client's address, so the number of series is bounded by the Services
// of the moment.
//
// It answers to pkg/proxy/healthcheck, pkg/proxy/metrics and serveMetrics of
// cmd/kube-proxy in kube-proxy 1.37: paths, bodies, headers, status codes and names
// of series are the same.
package status
