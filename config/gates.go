package config

// gateExternalIPs is the one feature gate of kube-proxy that has a meaning here.
const gateExternalIPs = "AllowServiceExternalIPs"

// AllowsExternalIPs reports whether the externalIPs of Services are served. They are
// unless the feature gate AllowServiceExternalIPs is false (KEP-5707), as in
// kube-proxy 1.37.
func AllowsExternalIPs(c *Configuration) bool {
	allow, given := c.FeatureGates[gateExternalIPs]
	return allow || !given
}
