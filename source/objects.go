package source

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Objects is the raw material of a Snapshot: every API object known at one
// moment. Build only reads them.
type Objects struct {
	Services  []*corev1.Service
	Slices    []*discoveryv1.EndpointSlice
	Endpoints []*corev1.Endpoints //lint:ignore SA1019 old manifests still hold them; used only for a Service that has no slice at all
	Node      *corev1.Node        // this node; nil when unknown
}

// Options is what Build must be told beside the objects.
type Options struct {
	// NodeName is the name by which endpoints and hints know this node. Empty: no
	// endpoint is Local.
	NodeName string
	// KnownBalancer reports whether a balancing policy of that name exists; it
	// checks the annotation kube-splice.io/balancer. Nil accepts every name.
	KnownBalancer func(name string) bool
	// NoExternalIPs makes every Service's externalIPs count as an empty list, as in
	// kube-proxy without the feature gate AllowServiceExternalIPs (KEP-5707).
	NoExternalIPs bool
}

// Notice is one thing wrong or unusual with an object: what, where, and how to
// mend it. Two equal Notices are the same thing said twice.
type Notice struct {
	Object string // "Service default/web"
	Text   string // one line
	// Reason is that of the Event on the Service that says it too; empty: there is none.
	Reason string
}

// notices collects what a build has to say.
type notices []Notice

// Whoever may write an object may fill it with faults: what is said of one at a time is
// so many notices at most, of so many bytes each.
const mostNotices, longestNotice = 20, 1024

// about returns a function that adds a notice about one object.
func (n *notices) about(object string) say {
	said := 0
	return func(format string, args ...any) {
		said++
		text := fmt.Sprintf(format, args...)
		switch {
		case said > mostNotices:
			return
		case said == mostNotices:
			text = "has more faults, which are not said one by one: mend those that are"
		case len(text) > longestNotice:
			text = cut(text, longestNotice) + "…"
		}
		*n = append(*n, Notice{Object: object, Text: text})
	}
}

// because makes the notice added last one that is worth an Event.
func (n *notices) because(reason string) { (*n)[len(*n)-1].Reason = reason }

// say adds one line about the object it was made for.
type say func(format string, args ...any)

// reference names an object in a notice. A name that an API server would have
// refused is quoted, so that it can break neither the line nor the terminal.
func reference(kind, namespace, name string) string {
	full := strings.TrimPrefix(namespace+"/"+name, "/")
	if strings.ContainsFunc(full, notInNames) {
		full = strconv.Quote(full)
	}
	return kind + " " + full
}

// notInNames reports whether r never occurs in "namespace/name".
func notInNames(r rune) bool {
	return !('a' <= r && r <= 'z' || '0' <= r && r <= '9' || strings.ContainsRune("-./", r))
}
