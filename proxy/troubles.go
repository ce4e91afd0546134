package proxy

import (
	"log/slog"

	"github.com/kube-splice/kube-splice/service"
)

// troubles says a thing that fails at every try only once, and once more when it
// is over.
type troubles struct {
	log     *slog.Logger
	tell    func(name service.Name, what string, err error) // of one Service port's
	last    map[trouble]string                              // what is known to fail, and how
	ongoing map[trouble]string                              // what failed since begin
}

type trouble struct {
	name service.Name
	verb string
}

// whose returns the Service port in trouble as attributes of a log line; the zero Name
// stands for all of them.
func (t trouble) whose() []any {
	if t.name == (service.Name{}) {
		return nil
	}
	return []any{"service", t.name.String(), "family", t.name.Family.String()}
}

// begin starts a round of tries.
func (t *troubles) begin() { t.ongoing = map[trouble]string{} }

// note takes the outcome of a try and reports whether it went well.
func (t *troubles) note(name service.Name, verb string, err error) bool {
	if err == nil {
		return true
	}
	key := trouble{name, verb}
	said := t.last[key] == err.Error() || t.ongoing[key] == err.Error()
	t.ongoing[key] = err.Error()
	if !said {
		t.log.Error("cannot "+verb+"; trying again from time to time", append(key.whose(), "error", err)...)
		if name != (service.Name{}) {
			t.tell(name, verb, err)
		}
	}
	return false
}

// end finishes the round and says what is no longer in trouble.
func (t *troubles) end() {
	for key := range t.last {
		if _, still := t.ongoing[key]; !still {
			t.log.Info("solved: "+key.verb, key.whose()...)
		}
	}
	t.last = t.ongoing
}
