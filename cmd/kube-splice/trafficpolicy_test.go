package main

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-splice/kube-splice/lab"
)

// The endpoints of the tests of traffic policies: one on this node, one on the other.
const (
	localPod  = "pod-a"
	remotePod = "pod-d"
	bothPods  = localPod + " " + remotePod
	noAnswer  = "refused"
)

// addressing makes the addresses of numbered Services in one family.
type addressing struct {
	clusterIP, balancer, external string // formats of a number
	node                          string
	nodePort                      int // of number 0
	pods                          map[string]string
	slice                         []func(*discoveryv1.EndpointSlice)
}

var (
	byIPv4 = addressing{
		clusterIP: "10.96.1.%d", balancer: "10.96.2.%d", external: "10.96.3.%d", node: lab.NodeIP, nodePort: 30100,
		pods: map[string]string{localPod: podA, remotePod: "10.244.2.11"},
	}
	byIPv6 = addressing{
		clusterIP: "fd00:10:96::1%02d", balancer: "fd00:10:96::2%02d", external: "fd00:10:96::3%02d", node: lab.NodeIPv6, nodePort: 30200,
		pods:  map[string]string{localPod: podA6, remotePod: "fd00:10:244:2::11"},
		slice: []func(*discoveryv1.EndpointSlice){ipv6},
	}
)

// ways are the addresses of a numbered Service, by what they are.
func (a addressing) ways(number int) map[string]string {
	at := func(format string) string { return net.JoinHostPort(fmt.Sprintf(format, number), "80") }
	return map[string]string{
		"clusterIP": at(a.clusterIP), "load balancer": at(a.balancer), "externalIP": at(a.external),
		"nodePort": net.JoinHostPort(a.node, strconv.Itoa(a.nodePort+number)),
	}
}

// policies gives a numbered Service every way in and the two traffic policies.
func (a addressing) policies(internal corev1.ServiceInternalTrafficPolicy, external corev1.ServiceExternalTrafficPolicy, number int) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.InternalTrafficPolicy, s.Spec.ExternalTrafficPolicy = &internal, external
		s.Spec.Ports[0].NodePort = int32(a.nodePort + number)
		s.Spec.ExternalIPs = []string{fmt.Sprintf(a.external, number)}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf(a.balancer, number)}}
	}
}

// onNodes says on which node each of a slice's endpoints is.
func onNodes(nodes ...string) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) {
		for i := range s.Endpoints {
			s.Endpoints[i].NodeName = &nodes[i]
		}
	}
}

// whoAnswers asks a few times and returns who answered, sorted, or "refused", or
// what else went wrong.
func whoAnswers(from *lab.Namespace, address string) string {
	seen := map[string]bool{}
	for range 4 {
		who, err := ask(from, address)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			who = noAnswer
		case err != nil:
			who = err.Error()
		}
		seen[who] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(seen)), " ")
}

// askers are the three kinds of client that a traffic policy tells apart.
func (c *cluster) askers() map[string]*lab.Namespace {
	return map[string]*lab.Namespace{"pod": c.client(), "node": c.Node, "outside": c.Outside}
}

// policyCase is a Service with some traffic policies and endpoints, and who is to
// answer whom.
type policyCase struct {
	internal corev1.ServiceInternalTrafficPolicy
	external corev1.ServiceExternalTrafficPolicy
	// endpoints are where it has some: "both", "local", "remote".
	endpoints string
	// clusterIP is what everybody gets by the clusterIP; inside and outside is what
	// pods and the node, and others, get by any other address.
	clusterIP, inside, outside string
}

const (
	inCluster = corev1.ServiceInternalTrafficPolicyCluster
	inLocal   = corev1.ServiceInternalTrafficPolicyLocal
	exCluster = corev1.ServiceExternalTrafficPolicyCluster
	exLocal   = corev1.ServiceExternalTrafficPolicyLocal
)

var policyCases = []policyCase{
	{inCluster, exCluster, "both", bothPods, bothPods, bothPods},
	{inCluster, exCluster, "local", localPod, localPod, localPod},
	{inCluster, exCluster, "remote", remotePod, remotePod, remotePod},
	{inCluster, exLocal, "both", bothPods, bothPods, localPod},
	{inCluster, exLocal, "local", localPod, localPod, localPod},
	{inCluster, exLocal, "remote", remotePod, remotePod, noAnswer},
	{inLocal, exCluster, "both", localPod, bothPods, bothPods},
	{inLocal, exCluster, "local", localPod, localPod, localPod},
	{inLocal, exCluster, "remote", noAnswer, remotePod, remotePod},
	{inLocal, exLocal, "both", localPod, bothPods, localPod},
	{inLocal, exLocal, "local", localPod, localPod, localPod},
	{inLocal, exLocal, "remote", noAnswer, remotePod, noAnswer},
	{inLocal, exLocal, "none", noAnswer, noAnswer, noAnswer},
	{inCluster, exCluster, "none", noAnswer, noAnswer, noAnswer},
}

func (p policyCase) String() string {
	return fmt.Sprintf("internal %s, external %s, endpoints %s", p.internal, p.external, p.endpoints)
}

// objects are the Service and its slice.
func (p policyCase) objects(number int, a addressing) []any {
	name := fmt.Sprintf("policy-%d", a.nodePort+number)
	where := map[string][]string{"both": {localPod, remotePod}, "local": {localPod}, "remote": {remotePod}}[p.endpoints]
	var addresses, on []string
	for _, pod := range where {
		addresses, on = append(addresses, a.pods[pod]), append(on, map[string]string{localPod: "node", remotePod: "node2"}[pod])
	}
	return []any{
		newService(name, fmt.Sprintf(a.clusterIP, number), a.policies(p.internal, p.external, number)),
		newSlice(name, addresses, append(a.slice, onNodes(on...))...),
	}
}

// newTwoNodes is a cluster with a pod on this node and one on another.
func newTwoNodes(t *testing.T) *cluster {
	t.Helper()
	l, err := lab.New(lab.Config{})
	check(t, err)
	t.Cleanup(func() { check(t, l.Close()) })
	c := &cluster{Lab: l, t: t, manifests: t.TempDir()}
	c.serveAll(localPod, remotePod)
	return c
}

// Who asks, by which address, gets which endpoints: the whole table.
func TestTrafficPoliciesDecideWhoGetsWhichEndpoints(t *testing.T) {
	t.Parallel()
	c := newTwoNodes(t)
	for i, p := range policyCases {
		c.apply(fmt.Sprintf("policy-%d", i), slices.Concat(p.objects(i+1, byIPv4), p.objects(i+1, byIPv6))...)
	}
	c.start("--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48")
	for i, p := range policyCases {
		for _, a := range []addressing{byIPv4, byIPv6} {
			c.wantPolicy(p, a.ways(i+1))
		}
	}
}

// wantPolicy demands the answers of one row of the table.
func (c *cluster) wantPolicy(p policyCase, ways map[string]string) {
	c.t.Helper()
	c.wantPolicyBy(whoAnswers, p, ways)
}

// wantPolicyBy is wantPolicy with another way to ask.
func (c *cluster) wantPolicyBy(ask func(from *lab.Namespace, address string) string, p policyCase, ways map[string]string) {
	c.t.Helper()
	for who, from := range c.askers() {
		for way, address := range ways {
			want := p.inside
			switch {
			case way == "clusterIP":
				want = p.clusterIP
			case who == "outside":
				want = p.outside
			}
			if got := ask(from, address); got != want {
				c.t.Errorf("%v: %s by the %s, %s: answered by %s, want %s", p, who, way, address, got, want)
			}
		}
	}
}

// A node that is not told where pods are takes them for clients outside, as kube-proxy
// does. It knows itself all the same.
func TestPodsCountAsOutsideWhereNothingTellsThem(t *testing.T) {
	t.Parallel()
	c := newTwoNodes(t)
	p := policyCase{internal: inCluster, external: exLocal, endpoints: "both"}
	c.apply("policy", p.objects(1, byIPv4)...)
	c.start()
	for who, want := range map[string]string{"pod": localPod, "node": bothPods, "outside": localPod} {
		for way, address := range byIPv4.ways(1) {
			want := want
			if way == "clusterIP" {
				want = bothPods
			}
			if got := whoAnswers(c.askers()[who], address); got != want {
				t.Errorf("%s by the %s is answered by %s, want %s", who, way, got, want)
			}
		}
	}
}
