package lb

import (
	"reflect"
	"testing"
	"unsafe"
)

// TestDefaults: each policy is what a Service requests, or else what is given for all.
func TestDefaults(t *testing.T) {
	set := func(i int) (p Policies) {
		f := reflect.ValueOf(&p).Elem().Field(i)
		switch {
		case f.CanInt():
			f.SetInt(1)
		case f.Kind() == reflect.String:
			f.SetString("x")
		default:
			t.Fatalf("no value is known for %s", reflect.TypeFor[Policies]().Field(i).Name)
		}
		return p
	}
	for i := range reflect.TypeFor[Policies]().NumField() {
		name, p, none := reflect.TypeFor[Policies]().Field(i).Name, set(i), Policies{}
		if got := *none.Or(&p); got != p {
			t.Errorf("%s: given for all, it is %+v", name, got)
		}
		if got := *p.Or(&none); got != p {
			t.Errorf("%s: requested, it is %+v", name, got)
		}
	}
}

// TestPoliciesInForce: a Service without policies has those for all, one that changes has others at once, also for
// connections that are there, and one that goes keeps its own.
func TestPoliciesInForce(t *testing.T) {
	b := &Balancer{Defaults: Policies{SlowStart: 5, Scheduler: "lc"}}
	s := echo(1)
	f := Flow{Frontend: Frontend{s.Protocol, s.Addresses[0].Addr}}
	if b.Policies(f.Frontend) != &b.Defaults {
		t.Error("an address without a Service has others than those for all")
	}
	b.Update(mustTable(t, []Service{s}))
	c, err := b.Pick(f)
	if err != nil {
		t.Fatal(err)
	}
	if c.Policies() != &b.Defaults || b.Policies(f.Frontend) != &b.Defaults {
		t.Errorf("not those for all: %+v", c.Policies())
	}
	s.Policies = &Policies{SlowStart: -1}
	b.Update(mustTable(t, []Service{s}))
	want := Policies{SlowStart: -1, Scheduler: "lc"}
	if *c.Policies() != want || *b.Policies(f.Frontend) != want {
		t.Errorf("after a change: %+v, %+v", c.Policies(), b.Policies(f.Frontend))
	}
	b.Update(nil)
	if *c.Policies() != want {
		t.Errorf("after the Service has gone: %+v", c.Policies())
	}
	c.Done(nil)
	if n := testing.AllocsPerRun(100, func() { b.Policies(f.Frontend) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := unsafe.Sizeof(Service{}.Policies); n != 8 {
		t.Errorf("a Service without policies pays %d bytes", n)
	}
}
