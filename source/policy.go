package source

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-splice/kube-splice/service"
)

// maxAffinity is the longest session affinity the API allows: one day.
const maxAffinity = 86400

// policyOf returns how the Service wants its connections treated. A wish that
// cannot be read is said and counts as not made.
func policyOf(svc *corev1.Service, o Options, say say) service.Policy {
	policy := service.Policy{Affinity: affinityOf(&svc.Spec, say)}
	for _, name := range ourAnnotations(svc) {
		read, known := wishes[name]
		if !known {
			say("annotation %q is unknown and ignored: known are %s", name, strings.Join(knownAnnotations(), ", "))
			continue
		}
		if err := read(&policy, svc.Annotations[name], o); err != nil {
			say("annotation %s: %v; the default is used", name, err)
		}
	}
	sayUseless(svc, policy, say)
	return policy
}

// scopesOf returns the traffic policies of a Service. The external one counts only
// for a Service that is meant to be reached from outside.
func scopesOf(spec *corev1.ServiceSpec, say say) (internal, external service.Scope) {
	internal = scopeOf("internal", string(ptr.Deref(spec.InternalTrafficPolicy, "")), say)
	external = scopeOf("external", string(spec.ExternalTrafficPolicy), say)
	if !hasNodePorts(spec) && len(spec.ExternalIPs) == 0 {
		external = service.Cluster
	}
	return internal, external
}

// scopeOf reads one traffic policy; an absent one is Cluster.
func scopeOf(which, word string, say say) service.Scope {
	switch word {
	case service.Local.String():
		return service.Local
	case service.Cluster.String(), "":
	default:
		say("spec.%sTrafficPolicy %q is unknown and Cluster is used: use Cluster or Local", which, word)
	}
	return service.Cluster
}

// affinityOf returns the ClientIP session affinity; 0 means none.
func affinityOf(spec *corev1.ServiceSpec, say say) time.Duration {
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityClientIP:
	case corev1.ServiceAffinityNone, "":
		return 0
	default:
		say("spec.sessionAffinity %q is unknown and ignored: use None or ClientIP", spec.SessionAffinity)
		return 0
	}
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	if seconds < 1 || seconds > maxAffinity {
		say("sessionAffinityConfig.clientIP.timeoutSeconds %d is not in 1-%d; %d is used", seconds, maxAffinity, corev1.DefaultClientIPServiceAffinitySeconds)
		seconds = corev1.DefaultClientIPServiceAffinitySeconds
	}
	return time.Duration(seconds) * time.Second
}
