package source

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-splice/kube-splice/service"
)

// The annotations of a Service that we read.
const (
	annotationPrefix        = "kube-splice.io/"
	annotationBalancer      = annotationPrefix + "balancer"
	annotationIdleTimeout   = annotationPrefix + "idle-timeout"
	annotationConnectionLog = annotationPrefix + "connection-log"
)

// maxAffinity is the longest session affinity the API allows: one day.
const maxAffinity = 86400

// policyOf returns how the Service wants its connections treated. A wish that
// cannot be read is said and counts as not made.
func policyOf(svc *corev1.Service, o Options, say say) service.Policy {
	policy := service.Policy{Affinity: affinityOf(&svc.Spec, say)}
	for _, name := range ourAnnotations(svc) {
		value := svc.Annotations[name]
		switch name {
		case annotationBalancer:
			if o.KnownBalancer != nil && !o.KnownBalancer(value) {
				say("annotation %s: no balancer is named %q; the default is used", name, value)
				continue
			}
			policy.Balancer = value
		case annotationIdleTimeout:
			d, err := time.ParseDuration(value)
			if err != nil || d <= 0 {
				say("annotation %s: %q is not a duration above zero such as 5m or 90s; the default is used", name, value)
				continue
			}
			policy.IdleTimeout = d
		case annotationConnectionLog:
			if value != "on" && value != "off" {
				say("annotation %s: %q is neither on nor off; the default is used", name, value)
				continue
			}
			policy.LogOff = value == "off"
		default:
			say("annotation %q is unknown and ignored: known are balancer, idle-timeout, connection-log", name)
		}
	}
	return policy
}

// scopesOf returns the traffic policies of a Service. The external one counts only
// for a Service that is meant to be reached from outside.
func scopesOf(spec *corev1.ServiceSpec, say say) (internal, external service.Scope) {
	internal = scopeOf("internal", string(ptr.Deref(spec.InternalTrafficPolicy, "")), say)
	external = scopeOf("external", string(spec.ExternalTrafficPolicy), say)
	hasNodePorts := spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer
	if !hasNodePorts && len(spec.ExternalIPs) == 0 {
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

// ourAnnotations returns the names of the annotations meant for us, sorted.
func ourAnnotations(svc *corev1.Service) []string {
	var names []string
	for name := range svc.Annotations {
		if strings.HasPrefix(name, annotationPrefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
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
