package service_test

import (
	"slices"
	"testing"
	"time"

	"github.com/kube-splice/kube-splice/service"
)

func TestSnapshotThatReplacesAnotherHasItsTriggersToo(t *testing.T) {
	at := func(second int64) service.Trigger {
		return service.Trigger{Family: service.IPv4, At: time.Unix(second, 0)}
	}
	plain := &service.Snapshot{Ports: []*service.Port{newPort()}}
	first, second := plain.Triggered([]service.Trigger{at(1), at(2)}), plain.Triggered([]service.Trigger{at(3)})
	if plain.Triggers != nil || plain.Triggered(nil) != plain {
		t.Error("a Snapshot was changed, or copied for nothing")
	}
	both := second.InPlaceOf(first)
	if !slices.Equal(both.Triggers, []service.Trigger{at(1), at(2), at(3)}) || both.Ports[0] != plain.Ports[0] {
		t.Errorf("triggers %v", both.Triggers)
	}
	if len(first.Triggers) != 2 || len(second.Triggers) != 1 {
		t.Error("a Snapshot was changed")
	}
	if plain.InPlaceOf(plain) != plain {
		t.Error("a Snapshot was copied for nothing")
	}
	many := plain
	for range 3 {
		many = plain.Triggered(make([]service.Trigger, service.MostTriggers)).InPlaceOf(many)
	}
	if len(many.Triggers) != service.MostTriggers {
		t.Errorf("%d triggers are kept, want %d", len(many.Triggers), service.MostTriggers)
	}
}
