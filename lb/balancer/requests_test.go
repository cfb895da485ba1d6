package balancer

import (
	"testing"
	"unsafe"

	"github.com/sluice-lb/sluice/lb"
)

// TestPoliciesInForce: a Service without policies has those for all, one that changes has others at once, also for
// connections that are there, and one that goes keeps its own.
func TestPoliciesInForce(t *testing.T) {
	b := &Balancer{Defaults: lb.Policies{SlowStart: 5, Scheduler: "lc"}}
	s := echo(1)
	f := Flow{Frontend: lb.Frontend{Protocol: s.Protocol, Addr: s.Addresses[0].Addr}}
	if b.Policies(f.Frontend) != &b.Defaults {
		t.Error("an address without a Service has others than those for all")
	}
	b.Update(mustTable(t, []lb.Service{s}))
	c, err := b.Pick(f)
	if err != nil {
		t.Fatal(err)
	}
	if c.Policies() != &b.Defaults || b.Policies(f.Frontend) != &b.Defaults {
		t.Errorf("not those for all: %+v", c.Policies())
	}
	s.Policies = &lb.Policies{SlowStart: -1}
	b.Update(mustTable(t, []lb.Service{s}))
	want := lb.Policies{SlowStart: -1, Scheduler: "lc"}
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
	if n := unsafe.Sizeof(lb.Service{}.Policies); n != 8 {
		t.Errorf("a Service without policies pays %d bytes", n)
	}
}
