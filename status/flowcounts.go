package status

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-splice/kube-splice/proxy"
)

var (
	flows            = desc("flows_total", "First datagrams of UDP clients that had no flow.")
	flowsActive      = desc("flows_active", "UDP flows that have not ended.")
	flowsEvicted     = desc("flows_evicted_total", "UDP flows that made room for others: at --udp-max-flows, or for want of descriptors or ports.")
	datagrams        = desc("datagrams_total", "Datagrams relayed, client to backend (up) and back (down), counted when a flow ends.", "direction")
	datagramsDropped = desc("datagrams_dropped_total", "Datagrams not passed on, by why: unrouted (their client was refused), no-socket (descriptors, ports or memory were lacking), full (the kernel had no room), denied (by a firewall rule of this node), unsendable (anything else).", "reason")
	datagramsResent  = desc("datagrams_resent_total", "Datagrams that an endpoint refused and another one was sent.")
	receiveFailures  = desc("datagram_receive_failures_total", "Times that receiving datagrams failed for want of something.")
)

// collectFlows tells what was counted of UDP.
func collectFlows(metrics chan<- prometheus.Metric, f proxy.FlowCounts) {
	count := func(d *prometheus.Desc, n int64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	metrics <- prometheus.MustNewConstMetric(flowsActive, prometheus.GaugeValue, float64(f.Active))
	e := f.Engine
	count(flows, f.Accepted)
	count(flowsEvicted, e.Evicted)
	count(datagrams, f.DatagramsUp, "up")
	count(datagrams, f.DatagramsDown, "down")
	count(datagramsDropped, e.Unrouted, "unrouted")
	count(datagramsDropped, e.NoSocket, "no-socket")
	count(datagramsDropped, e.Full, "full")
	count(datagramsDropped, e.Denied, "denied")
	count(datagramsDropped, e.Unsendable, "unsendable")
	count(datagramsResent, e.Resent)
	count(receiveFailures, e.ReceiveFails)
}
