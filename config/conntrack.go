package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// Conntrack is the section about the kernel's connection tracking. In it, a zero, or
// nil, leaves what the kernel has.
type Conntrack = v1alpha1.KubeProxyConntrackConfiguration

// ZeroConntrack returns a section that leaves everything as it is and has no nil.
func ZeroConntrack() Conntrack {
	return Conntrack{
		MaxPerCore: new(int32), Min: new(int32),
		TCPEstablishedTimeout: &metav1.Duration{}, TCPCloseWaitTimeout: &metav1.Duration{},
	}
}

// DurationOf returns what d points to, or 0.
func DurationOf(d *metav1.Duration) time.Duration {
	if d == nil {
		return 0
	}
	return d.Duration
}
