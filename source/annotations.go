package source

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/service"
)

// The annotations of a Service that we read.
const (
	annotationPrefix        = "kube-splice.io/"
	annotationBalancer      = annotationPrefix + "balancer"
	annotationIdleTimeout   = annotationPrefix + "idle-timeout"
	annotationConnectionLog = annotationPrefix + "connection-log"
	annotationAcceptProxy   = annotationPrefix + "accept-proxy-protocol"
	annotationSendProxy     = annotationPrefix + "send-proxy-protocol"
	annotationVPCEndpoint   = annotationPrefix + "send-proxy-protocol-vpce-id"
	annotationPreserve      = annotationPrefix + "preserve-client-ip"
	annotationNodePorts     = annotationPrefix + "node-port-source-ranges" // see ranges.go
)

// wishes read an annotation's value into a Policy. An error says what is wrong with it.
var wishes = map[string]func(p *service.Policy, value string, o Options) error{
	annotationBalancer: func(p *service.Policy, value string, o Options) error {
		if o.KnownBalancer != nil && !o.KnownBalancer(value) {
			return fmt.Errorf("no balancer is named %q", value)
		}
		p.Balancer = value
		return nil
	},
	annotationIdleTimeout: func(p *service.Policy, value string, _ Options) error {
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			return fmt.Errorf("%q is not a duration above zero such as 5m or 90s", value)
		}
		p.IdleTimeout = d
		return nil
	},
	annotationConnectionLog: func(p *service.Policy, value string, _ Options) (err error) {
		p.LogOff, err = oneOf(value, map[string]bool{"on": false, "off": true})
		return err
	},
	annotationAcceptProxy: func(p *service.Policy, value string, _ Options) (err error) {
		p.AcceptProxy, err = oneOf(value, map[string]bool{"required": true, "off": false})
		return err
	},
	annotationSendProxy: func(p *service.Policy, value string, _ Options) (err error) {
		p.SendProxy, err = oneOf(value, map[string]uint8{"v1": 1, "v2": 2, "off": 0})
		return err
	},
	annotationVPCEndpoint: func(p *service.Policy, value string, _ Options) error {
		if !vpcEndpointID.MatchString(value) {
			return fmt.Errorf("%q is not an ID of up to 64 letters, digits and hyphens", value)
		}
		p.VPCEndpoint = value
		return nil
	},
	annotationPreserve: func(p *service.Policy, value string, _ Options) (err error) {
		p.Preserve, err = oneOf(value, map[string]service.Preserve{"true": service.PreserveAll, "false": service.PreserveNone})
		return err
	},
	annotationNodePorts: func(*service.Policy, string, Options) error { return nil },
}

var vpcEndpointID = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

// oneOf returns what a word means.
func oneOf[T any](word string, meaning map[string]T) (T, error) {
	value, known := meaning[word]
	if !known {
		return value, fmt.Errorf("%q is none of %s", word, strings.Join(slices.Sorted(maps.Keys(meaning)), ", "))
	}
	return value, nil
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

// knownAnnotations returns what annotations may be called, without the prefix.
func knownAnnotations() []string {
	var names []string
	for name := range wishes {
		names = append(names, strings.TrimPrefix(name, annotationPrefix))
	}
	slices.Sort(names)
	return names
}

// sayUseless says which wishes have no effect.
func sayUseless(svc *corev1.Service, p service.Policy, say say) {
	isTCP := func(sp corev1.ServicePort) bool { return sp.Protocol == corev1.ProtocolTCP || sp.Protocol == "" }
	if (p.AcceptProxy || p.SendProxy > 0) && !slices.ContainsFunc(svc.Spec.Ports, isTCP) {
		say("PROXY protocol is for TCP here, and the Service has no port of it: its annotations have no effect")
	}
	if p.VPCEndpoint != "" && p.SendProxy != 2 {
		say("annotation %s has no effect without %s: v2", annotationVPCEndpoint, annotationSendProxy)
	}
}
