package redirect

import (
	"errors"
	"fmt"
	"strings"

	"github.com/kube-splice/kube-splice/service"
)

// maxComment is the longest comment a rule can carry, in bytes: the kernel's
// XT_MAX_COMMENT_LEN less its final zero.
const maxComment = 255

// check returns why no rule can be written for b, naming its Service.
func check(b service.Binding) error {
	if err := checkComment(listenerName(b)); err != nil {
		return fmt.Errorf("write rules of Service port %.300q: %w", b.Name.String(), err)
	}
	if err := checkAddresses(b); err != nil {
		return fmt.Errorf("write rules of Service port %s, %s %s: %w", b.Name, b.Portal.Kind, b.Portal.Addr, err)
	}
	return nil
}

// checkComment makes sure that the name passes iptables-restore's quoting
// unchanged and can be read back from the rule.
func checkComment(n service.ListenerName) error {
	comment := n.String()
	if len(comment) > maxComment {
		return fmt.Errorf("the name has %d bytes, a rule's comment holds %d", len(comment), maxComment)
	}
	for _, c := range []byte(comment) {
		if c < ' ' || c > '~' || strings.IndexByte("\"'\\`", c) >= 0 {
			return fmt.Errorf("the name contains %q, which a rule's comment cannot carry safely", c)
		}
	}
	if back, ok := parseListener(comment, n.Name.Protocol, n.Name.Family); !ok || back != n {
		return fmt.Errorf(`the name cannot be told from its parts: "/", ":" and %q separate them`, service.LocalSuffix)
	}
	return nil
}

func checkAddresses(b service.Binding) error {
	portal, listener := b.Portal, b.Listener
	switch {
	case b.Name.Protocol != service.TCP && b.Name.Protocol != service.UDP:
		return fmt.Errorf("protocol %q is neither tcp nor udp", b.Name.Protocol)
	case portal.Number == 0:
		return errors.New("the portal has no port")
	case portal.Kind != service.NodePort && !portal.Addr.IsValid():
		return errors.New("the portal has no address")
	case portal.Kind != service.NodePort && service.FamilyOf(portal.Addr) != b.Name.Family:
		return fmt.Errorf("the portal's address is not %s", b.Name.Family)
	case !listener.IsValid() || listener.Port() == 0:
		return errors.New("the listener has no address or no port")
	case !listener.Addr().IsUnspecified() && service.FamilyOf(listener.Addr()) != b.Name.Family:
		return fmt.Errorf("the listener's address %s is not %s", listener.Addr(), b.Name.Family)
	}
	return nil
}

// parseListener is the inverse of service.ListenerName.String.
func parseListener(s string, proto service.Protocol, family service.Family) (service.ListenerName, bool) {
	scope := service.Cluster
	s, local := strings.CutSuffix(s, service.LocalSuffix)
	if local {
		scope = service.Local
	}
	name, ok := parseName(s, proto, family)
	return service.ListenerName{Name: name, Scope: scope}, ok
}

// parseName is the inverse of service.Name.String.
func parseName(s string, proto service.Protocol, family service.Family) (service.Name, bool) {
	namespace, rest, ok := strings.Cut(s, "/")
	if !ok || strings.Contains(rest, "/") {
		return service.Name{}, false
	}
	name, port, named := strings.Cut(rest, ":")
	if named && port == "" {
		return service.Name{}, false
	}
	return service.Name{Namespace: namespace, Service: name, Port: port, Protocol: proto, Family: family}, true
}
