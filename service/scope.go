package service

// Scope says which endpoints of a Service port a client gets. A Service port whose
// traffic policies give different clients different endpoints has one listener a
// Scope, so that one can refuse while the other serves.
type Scope uint8

// The scopes, named after the values of a traffic policy.
const (
	// Cluster is the endpoints of the whole cluster, as topology hints narrow them.
	Cluster Scope = iota
	// Local is the endpoints on this node.
	Local
)

// Scopes is the number of scopes, for arrays indexed by one.
const Scopes = 2

// String returns "Cluster" or "Local".
func (s Scope) String() string {
	if s == Local {
		return "Local"
	}
	return "Cluster"
}

// Clients are those of a portal's clients that a Portal is about.
type Clients uint8

// Who may ask.
const (
	// Anyone asks: all clients get the same endpoints.
	Anyone Clients = iota
	// Inside asks: the node itself and the cluster's pods, as far as the node can
	// tell them.
	Inside
	// Outside asks: everybody else.
	Outside
)

// String returns "anyone", "inside" or "outside".
func (c Clients) String() string { return [...]string{"anyone", "inside", "outside"}[c] }

// ListenerName names one listener: a Service port has one for each Scope that its
// portals need.
type ListenerName struct {
	Name  Name
	Scope Scope
}

// LocalSuffix tells the text of the listener of local endpoints from the other one's.
const LocalSuffix = " (local)"

// String returns the Name's text, with " (local)" behind it for the scope Local. It
// is what rule comments hold.
func (n ListenerName) String() string {
	if n.Scope == Local {
		return n.Name.String() + LocalSuffix
	}
	return n.Name.String()
}
