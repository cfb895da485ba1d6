package kubeapi

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/sluice-lb/sluice/internal/lists"
)

// collection is what a reflector puts the objects of one kind into: all of them, in
// the order of namespace and name. An object that arrives and says what the present
// one says is dropped, so that comparing pointers finds no change.
type collection[T metav1.Object] struct {
	trim    func(T) T           // what arrives is used no further
	older   func(any) (T, bool) // reads an object of an older version of the API; nil: there is none
	changed func()              // called, without the lock, when there is another content

	mu     sync.Mutex // guards the following
	sorted lists.List[T]
	synced bool // a first complete list has been seen
}

var _ cache.TransformingStore = (*collection[*corev1.Node])(nil)

// all returns the objects, and whether they are complete.
func (c *collection[T]) all() (lists.List[T], bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sorted, c.synced
}

// search returns where the object of the name of one is. The caller holds the lock.
func (c *collection[T]) search(named T) (p lists.Place, found bool) {
	return c.sorted.Search(func(o T) int { return compare(o, named) })
}

func compare[T metav1.Object](a, b T) int {
	return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
}

// Add is called by the reflector, as the other exported methods are.
func (c *collection[T]) Add(obj any) error { return c.Update(obj) }

// Update adds or replaces an object.
func (c *collection[T]) Update(obj any) error {
	now, err := c.trimmed(obj)
	if err != nil {
		return err
	}
	c.mu.Lock()
	p, found := c.search(now)
	switch {
	case !found:
		c.sorted = c.sorted.Insert(p, now)
	case reflect.DeepEqual(c.sorted.At(p), now):
		c.mu.Unlock()
		return nil
	default:
		c.sorted = c.sorted.Set(p, now)
	}
	c.mu.Unlock()
	c.changed()
	return nil
}

// Delete removes an object.
func (c *collection[T]) Delete(obj any) error {
	gone, err := c.typed(obj)
	if err != nil {
		return err
	}
	c.mu.Lock()
	p, found := c.search(gone)
	if found {
		c.sorted = c.sorted.Delete(p)
	}
	c.mu.Unlock()
	if found {
		c.changed()
	}
	return nil
}

// Replace sets the whole content: what is not in the list is gone.
func (c *collection[T]) Replace(list []any, _ string) error {
	next := make([]T, 0, len(list))
	for _, obj := range list {
		now, err := c.trimmed(obj)
		if err != nil {
			return err
		}
		next = append(next, now)
	}
	slices.SortFunc(next, compare[T])
	c.mu.Lock()
	other := !c.synced || len(next) != c.sorted.Len()
	for i, now := range next {
		if p, found := c.search(now); found && reflect.DeepEqual(c.sorted.At(p), now) {
			next[i] = c.sorted.At(p)
		} else {
			other = true
		}
	}
	c.sorted, c.synced = lists.Of(next), true
	c.mu.Unlock()
	if other {
		c.changed()
	}
	return nil
}

// Resync has nothing to do: single objects are not passed on.
func (c *collection[T]) Resync() error { return nil }

// Transformer trims what the reflector itself gathers before it calls Replace, so
// that a long list is never in memory as the server sent it.
func (c *collection[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return c.trimmed(obj) }
}

// trimmed returns what is kept of an object.
func (c *collection[T]) trimmed(obj any) (T, error) {
	t, err := c.typed(obj)
	if err != nil {
		return t, err
	}
	return c.trim(t), nil
}

// typed returns an object as one of the collection's type.
func (c *collection[T]) typed(obj any) (T, error) {
	t, ok := obj.(T)
	if !ok && c.older != nil {
		t, ok = c.older(obj)
	}
	if !ok {
		return t, fmt.Errorf("a %T among objects of type %T", obj, t)
	}
	return t, nil
}
