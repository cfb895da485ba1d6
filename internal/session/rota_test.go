package session

import (
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// Services have their turns one after the other, whatever the length of their queues, and each queue keeps its order.
func TestRota(t *testing.T) {
	var r rota[string]
	a, b, c := new(tenant[lb.Name]), new(tenant[lb.Name]), new(tenant[lb.Name])
	add := func(name string, of *tenant[lb.Name]) *entry[string] {
		e := &entry[string]{value: name}
		r.add(e, of)
		return e
	}
	add("a1", a)
	a2 := add("a2", a)
	add("a3", a)
	add("a4", a)
	add("b1", b)
	c1 := add("c1", c)
	add("b2", b)
	r.remove(a2) // its client has gone
	r.remove(a2) // which is noticed twice
	r.remove(c1) // and the only one of c
	var got []string
	for e := r.take(); e != nil; e = r.take() {
		got = append(got, e.value)
		if e.value == "b1" {
			add("c2", c)
		}
	}
	if want := []string{"a1", "b1", "c2", "a3", "b2", "a4"}; !slices.Equal(got, want) {
		t.Errorf("turns %q, want %q", got, want)
	}
	if a.queue+b.queue+c.queue != 0 || len(r.queues) != 0 {
		t.Errorf("queues %d, %d and %d are left of %d", a.queue, b.queue, c.queue, len(r.queues))
	}
}
