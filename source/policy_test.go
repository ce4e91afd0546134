package source_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-splice/kube-splice/service"
	"github.com/kube-splice/kube-splice/source"
)

func annotated(pairs ...string) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		svc.Annotations = map[string]string{"example.com/idle-timeout": "not ours"}
		for i := 0; i < len(pairs); i += 2 {
			svc.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

func affinity(kind corev1.ServiceAffinity, config *corev1.SessionAffinityConfig) func(*corev1.Service) {
	return func(svc *corev1.Service) {
		svc.Spec.SessionAffinity, svc.Spec.SessionAffinityConfig = kind, config
	}
}

func timeout(seconds int32) *corev1.SessionAffinityConfig {
	return &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
}

func TestPolicyIsWhatTheServiceAsksFor(t *testing.T) {
	const hours = 10800 * time.Second
	for name, c := range map[string]struct {
		edit func(*corev1.Service)
		want service.Policy
		says string // empty: no notice
	}{
		"nothing":      {annotated(), service.Policy{}, ""},
		"all":          {annotated("kube-splice.io/balancer", "random", "kube-splice.io/idle-timeout", "1m30s", "kube-splice.io/connection-log", "off"), service.Policy{Balancer: "random", IdleTimeout: 90 * time.Second, LogOff: true}, ""},
		"log on":       {annotated("kube-splice.io/connection-log", "on"), service.Policy{}, ""},
		"no such word": {annotated("kube-splice.io/balancer", "best"), service.Policy{}, `"best"`},
		"no duration":  {annotated("kube-splice.io/idle-timeout", "90"), service.Policy{}, `"90"`},
		"zero":         {annotated("kube-splice.io/idle-timeout", "0s"), service.Policy{}, `"0s"`},
		"negative":     {annotated("kube-splice.io/idle-timeout", "-1s"), service.Policy{}, `"-1s"`},
		"log maybe":    {annotated("kube-splice.io/connection-log", "true"), service.Policy{}, `"true"`},
		"accept":       {annotated("kube-splice.io/accept-proxy-protocol", "required"), service.Policy{AcceptProxy: true}, ""},
		"accept off":   {annotated("kube-splice.io/accept-proxy-protocol", "off"), service.Policy{}, ""},
		"accept maybe": {annotated("kube-splice.io/accept-proxy-protocol", "optional"), service.Policy{}, `"optional" is none of off, required`},
		"preserve":     {annotated("kube-splice.io/preserve-client-ip", "true"), service.Policy{Preserve: service.PreserveAll}, ""},
		"preserve not": {annotated("kube-splice.io/preserve-client-ip", "false"), service.Policy{Preserve: service.PreserveNone}, ""},
		"preserve how": {annotated("kube-splice.io/preserve-client-ip", "yes"), service.Policy{}, `"yes" is none of false, true`},
		"send v1":      {annotated("kube-splice.io/send-proxy-protocol", "v1"), service.Policy{SendProxy: 1}, ""},
		"send v2":      {annotated("kube-splice.io/send-proxy-protocol", "v2", "kube-splice.io/send-proxy-protocol-vpce-id", "vpce-1"), service.Policy{SendProxy: 2, VPCEndpoint: "vpce-1"}, ""},
		"send off":     {annotated("kube-splice.io/send-proxy-protocol", "off"), service.Policy{}, ""},
		"send v3":      {annotated("kube-splice.io/send-proxy-protocol", "v3"), service.Policy{}, `"v3" is none of off, v1, v2`},
		"no ID":        {annotated("kube-splice.io/send-proxy-protocol", "v2", "kube-splice.io/send-proxy-protocol-vpce-id", "vpce 1"), service.Policy{SendProxy: 2}, `"vpce 1"`},
		"ID for v1":    {annotated("kube-splice.io/send-proxy-protocol", "v1", "kube-splice.io/send-proxy-protocol-vpce-id", "vpce-1"), service.Policy{SendProxy: 1, VPCEndpoint: "vpce-1"}, "no effect without kube-splice.io/send-proxy-protocol: v2"},
		"no TCP": {func(svc *corev1.Service) {
			annotated("kube-splice.io/send-proxy-protocol", "v2")(svc)
			svc.Spec.Ports[0].Protocol = corev1.ProtocolUDP
		}, service.Policy{SendProxy: 2}, "is for TCP here"},
		"unknown":      {annotated("kube-splice.io/balancr", "random"), service.Policy{}, `"kube-splice.io/balancr"`},
		"no affinity":  {affinity("None", timeout(5)), service.Policy{}, ""},
		"affinity":     {affinity("ClientIP", timeout(5)), service.Policy{Affinity: 5 * time.Second}, ""},
		"longest":      {affinity("ClientIP", timeout(86400)), service.Policy{Affinity: 24 * time.Hour}, ""},
		"no timeout":   {affinity("ClientIP", nil), service.Policy{Affinity: hours}, ""},
		"empty config": {affinity("ClientIP", &corev1.SessionAffinityConfig{}), service.Policy{Affinity: hours}, ""},
		"zero timeout": {affinity("ClientIP", timeout(0)), service.Policy{Affinity: hours}, "timeoutSeconds 0"},
		"too long":     {affinity("ClientIP", timeout(86401)), service.Policy{Affinity: hours}, "timeoutSeconds 86401"},
		"other kind":   {affinity("Cookie", nil), service.Policy{}, `"Cookie"`},
	} {
		t.Run(name, func(t *testing.T) {
			known := func(name string) bool { return name == "random" }
			snapshot, notices := source.Build(nil, source.Objects{Services: []*corev1.Service{newService("web", "10.96.0.1", c.edit)}}, source.Options{KnownBalancer: known})
			if got := snapshot.Ports[0].Policy; got != c.want {
				t.Errorf("policy %+v, want %+v", got, c.want)
			}
			if c.says != "" {
				onlyNotice(t, notices, "Service default/web", c.says)
			} else {
				equal(t, "notices", notices, nil)
			}
		})
	}
}
