package status

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-splice/kube-splice/proxy"
)

// collector reads the proxy's counters at every scrape. A Service port without a
// listener has no series, so they are bounded by the Services of the moment.
type collector struct {
	proxy *proxy.Proxy
	log   *proxy.ConnectionLog // or nil
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("kubesplice_"+name, help, labels, nil)
}

var (
	connections = desc("connections_total", "TCP connections taken from listeners.")
	active      = desc("connections_active", "TCP connections that have not ended.")
	refused     = desc("connections_refused_total", "Connections and flows that got no backend, by why, in the words of the connection log.", "close")
	bytes       = desc("bytes_total", "Bytes relayed, client to backend (up) and back (down), counted when a connection or flow ends.", "direction")
	dialsFailed = desc("dial_failures_total", "Dials that failed, and endpoints that refused a datagram, whether or not another endpoint was reached.")
	retries     = desc("dial_retries_total", "Endpoints tried after a connection's or flow's first.")
	hidden      = desc("client_addresses_hidden_total", "Connections and flows whose backend was to see the client's address, and did not.")
	evictions   = desc("affinity_evictions_total", "Session affinity records that made room for others.")
	failing     = desc("listeners_failing", "Listeners and portals that cannot be opened at present.")
	logDropped  = desc("connection_log_dropped_total", "Records that are missing in the connection log.")
)

// Describe describes the series that are always there.
func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		connections, active, refused, bytes, dialsFailed, retries, hidden, evictions, failing, logDropped,
		serviceConnections, serviceActive, serviceBytes, serviceDatagrams, serviceDialsFailed, serviceEndpoints, serviceAffinity,
		flows, flowsActive, flowsEvicted, datagrams, datagramsDropped, datagramsResent, receiveFailures,
	} {
		descs <- d
	}
}

// Collect reads the counters.
func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	all := c.proxy.Counts()
	count := func(d *prometheus.Desc, n int64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	count(connections, all.Accepted)
	count(refused, all.RefusedDirect, string(proxy.RefusedDirect))
	count(refused, all.Denied, string(proxy.Denied))
	count(refused, all.BadHeader, string(proxy.BadHeader))
	count(refused, all.NoEndpoints, string(proxy.NoEndpoints))
	count(refused, all.DialFailed, string(proxy.DialFailed))
	count(bytes, all.Up, "up")
	count(bytes, all.Down, "down")
	count(refused, c.proxy.FlowCounts().Refused, string(proxy.Refused))
	count(dialsFailed, all.FailedTries)
	count(retries, all.Retries)
	count(hidden, all.Hidden)
	count(evictions, int64(all.Evicted)) // #nosec G115 -- a count from 0
	if c.log != nil {
		count(logDropped, c.log.Dropped())
	}
	metrics <- prometheus.MustNewConstMetric(active, prometheus.GaugeValue, float64(all.Active))
	metrics <- prometheus.MustNewConstMetric(failing, prometheus.GaugeValue, float64(all.Failing))
	collectFlows(metrics, c.proxy.FlowCounts())
	for _, s := range c.proxy.Services() {
		collectService(metrics, s)
	}
}
