package session

import (
	"slices"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// none is an Owner for tests that need no connection.
type none struct{ Conn[*none] }

func (*none) Parts() (*Shard[*none], *Side[*none], *Side[*none]) { return nil, nil, nil }
func (*none) Connect() error                                     { return nil }
func (*none) Connected() (bool, error)                           { return false, nil }
func (*none) Relay(bool)                                         {}
func (*none) Reset(int)                                          {}
func (*none) Release()                                           {}

// Services have their turns one after the other, whatever the length of their queues, and each queue keeps its order.
func TestRota(t *testing.T) {
	var r rota[*none]
	a, b, c := new(tenant[lb.Name]), new(tenant[lb.Name]), new(tenant[lb.Name])
	names := make(map[*dial[*none]]string)
	add := func(name string, of *tenant[lb.Name]) *dial[*none] {
		d := new(dial[*none])
		names[d] = name
		r.add(d, of)
		return d
	}
	add("a1", a)
	a2 := add("a2", a)
	add("a3", a)
	add("a4", a)
	add("b1", b)
	c1 := add("c1", c)
	add("b2", b)
	r.remove(a2) // its client has gone
	r.remove(c1) // and the only one of c
	var got []string
	for d := r.take(); d != nil; d = r.take() {
		got = append(got, names[d])
		if names[d] == "b1" {
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
