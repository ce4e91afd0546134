package source

import (
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// reporter is the reporting controller of our Events.
const reporter = "kube-splice"

// The reasons of Events about faults that this package finds in Services.
const (
	PortConflict        = "PortConflict"        // two Services want the same address and port
	UnsupportedProtocol = "UnsupportedProtocol" // SCTP
)

// ActionListen is the action of an Event about something that cannot be served; it is
// kube-proxy's word.
const ActionListen = "Listen"

// Event says what happened to an object, in the fields of an Event of the API.
type Event struct {
	Warning bool   // else Normal
	Reason  string // why, in one CamelCase word
	Action  string // what was done or tried, likewise
	Note    string // for people; what is beyond 1024 bytes is cut off
}

// Events takes Events about this node and about Services, for [Kubernetes] to send.
// Taking one never blocks: a queue holds some hundred while the API server is away, and
// what finds no room is lost. All methods may be called from any goroutine. A nil
// *Events takes nothing.
//
// Equal Events on one object are sent once an hour, which is how long an API server
// keeps them, and all together one a second after the first 25.
type Events struct {
	node  string
	queue chan datedEvent
	full  sync.Once
	lost  chan struct{} // closed when the first one was lost
}

// datedEvent is an Event, the object it is about, and when it happened.
type datedEvent struct {
	Event
	about corev1.ObjectReference
	node  string // that reports it
	at    time.Time
}

// NewEvents returns the Events of a node.
func NewEvents(node string) *Events {
	return &Events{node: node, queue: make(chan datedEvent, 256), lost: make(chan struct{})}
}

// OnNode takes an Event about this node.
func (e *Events) OnNode(event Event) {
	if e != nil {
		// The UID is by convention the name: a kubelet does not know it either at first.
		e.take(event, corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: e.node, UID: types.UID(e.node)})
	}
}

// OnService takes an Event about a Service.
func (e *Events) OnService(namespace, name string, event Event) {
	if e != nil {
		e.take(event, corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: name})
	}
}

func (e *Events) take(event Event, about corev1.ObjectReference) {
	select {
	case e.queue <- datedEvent{event, about, e.node, time.Now()}:
	default:
		e.full.Do(func() { close(e.lost) })
	}
}

// notice takes a notice that is worth an Event. From an API server, names need no
// quoting.
func (e *Events) notice(n Notice) {
	object, isService := strings.CutPrefix(n.Object, "Service ")
	namespace, name, _ := strings.Cut(object, "/")
	if isService && n.Reason != "" {
		e.OnService(namespace, name, Event{Warning: true, Reason: n.Reason, Action: ActionListen, Note: n.Text})
	}
}
