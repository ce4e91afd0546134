package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"
)

// Default returns the configuration of an empty file.
func Default() *Configuration {
	c := &Configuration{}
	SetDefaults(c)
	return c
}

// The ports of kube-proxy's two servers.
const (
	HealthzPort = 10256
	MetricsPort = 10249
)

// minSyncPeriod is shorter than kube-proxy's second: there, a sync writes the rules
// of every endpoint that changed; here, only new and removed Services cost a rule.
const minSyncPeriod = 100 * time.Millisecond

// SetDefaults fills in what a file leaves out, which is also what it gives as zero or
// empty. The values are kube-proxy's, except for
//   - minSyncPeriod, which is 100 ms in each mode;
//   - nodePortAddresses, whose absence is every address in mode nftables too;
//   - detectLocalMode, which kube-proxy completes a moment later.
func SetDefaults(c *Configuration) {
	c.TypeMeta = typeMeta
	setDefault(&c.BindAddress, "0.0.0.0")
	all, loopback := "0.0.0.0", "127.0.0.1"
	if ip := netutils.ParseIPSloppy(c.BindAddress); ip != nil && ip.To4() == nil {
		all, loopback = "::", "::1"
	}
	setDefault(&c.HealthzBindAddress, all)
	setDefault(&c.MetricsBindAddress, loopback)
	CompletePorts(c, HealthzPort, MetricsPort)
	setDefault(&c.DetectLocalMode, "ClusterCIDR")
	setPointer(&c.OOMScoreAdj, -999)
	setDefault(&c.ConfigSyncPeriod.Duration, 15*time.Minute)
	setDefault(&c.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	setDefault(&c.ClientConnection.QPS, 5)
	setDefault(&c.ClientConnection.Burst, 10)
	if c.FeatureGates == nil {
		c.FeatureGates = map[string]bool{}
	}
	setModeDefaults(c)
	setPointer(&c.Conntrack.MaxPerCore, 32*1024)
	setPointer(&c.Conntrack.Min, 128*1024)
	setPointer(&c.Conntrack.TCPEstablishedTimeout, metav1.Duration{Duration: 24 * time.Hour})
	setPointer(&c.Conntrack.TCPCloseWaitTimeout, metav1.Duration{Duration: time.Hour})
	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
}

func setModeDefaults(c *Configuration) {
	for _, period := range []*metav1.Duration{&c.IPTables.SyncPeriod, &c.IPVS.SyncPeriod, &c.NFTables.SyncPeriod} {
		setDefault(&period.Duration, 30*time.Second)
	}
	for _, period := range []*metav1.Duration{&c.IPTables.MinSyncPeriod, &c.IPVS.MinSyncPeriod, &c.NFTables.MinSyncPeriod} {
		setDefault(&period.Duration, minSyncPeriod)
	}
	setPointer(&c.IPTables.MasqueradeBit, 14)
	setPointer(&c.NFTables.MasqueradeBit, 14)
	setPointer(&c.IPTables.LocalhostNodePorts, true)
}

func setDefault[T comparable](field *T, value T) {
	if *field == *new(T) {
		*field = value
	}
}

func setPointer[T any](field **T, value T) {
	if *field == nil {
		*field = ptr.To(value)
	}
}
