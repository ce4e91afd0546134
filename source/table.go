package source

import (
	"fmt"
	"sync"

	"k8s.io/client-go/tools/cache"
)

// table is the last known state of all objects of one kind: the store a reflector
// writes to ([cache.ReflectorStore]). An informer would keep the same state, and
// queue every event besides; only whole states matter here.
type table[T object] struct {
	mu       *sync.Mutex // of objects and listed
	objects  map[key]T
	listed   bool                  // whether all objects were listed once
	trim     func(T)               // removes what nobody reads
	replaced func(before, after T) // called with mu held; the zero T is no object. May be nil
	wrote    func()                // called after each write
}

// Add puts in an object, as Update does: after a broken watch either may come first.
func (t *table[T]) Add(o any) error { return t.Update(o) }

// Update puts in an object.
func (t *table[T]) Update(o any) error {
	after, err := t.trimmed(o)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.put(after)
	t.mu.Unlock()
	t.wrote()
	return nil
}

// Delete takes out an object.
func (t *table[T]) Delete(o any) error {
	gone, err := t.trimmed(o)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.remove(keyOf(gone))
	t.mu.Unlock()
	t.wrote()
	return nil
}

// Replace makes list all there is. So what was deleted while nobody watched is
// noticed here.
func (t *table[T]) Replace(list []any, _ string) error {
	all := make(map[key]T, len(list))
	for _, o := range list {
		after, err := t.trimmed(o)
		if err != nil {
			return err
		}
		all[keyOf(after)] = after
	}
	t.mu.Lock()
	for k := range t.objects {
		if _, still := all[k]; !still {
			t.remove(k)
		}
	}
	if t.objects == nil {
		t.objects = make(map[key]T, len(all))
	}
	for _, after := range all {
		t.put(after)
	}
	t.listed = true
	t.mu.Unlock()
	t.wrote()
	return nil
}

// Resync does nothing: there is no queue to fill again.
func (t *table[T]) Resync() error { return nil }

// Transformer lets a reflector trim what it gathers before Replace.
func (t *table[T]) Transformer() cache.TransformFunc {
	return func(o any) (any, error) { return t.trimmed(o) }
}

// put replaces what is known of an object, unless it is the same version of it, as
// nearly all are when everything is listed again. No two writes share a version.
func (t *table[T]) put(after T) {
	before, known := t.objects[keyOf(after)]
	if known && before.GetResourceVersion() == after.GetResourceVersion() {
		return
	}
	if t.objects == nil {
		t.objects = map[key]T{}
	}
	t.objects[keyOf(after)] = after
	if t.replaced != nil {
		t.replaced(before, after)
	}
}

func (t *table[T]) remove(k key) {
	before, known := t.objects[k]
	delete(t.objects, k)
	if known && t.replaced != nil {
		var none T
		t.replaced(before, none)
	}
}

func (t *table[T]) trimmed(o any) (T, error) {
	typed, ok := o.(T)
	if !ok {
		return typed, fmt.Errorf("the API server sent a %T in place of a %T", o, typed)
	}
	t.trim(typed)
	return typed, nil
}
