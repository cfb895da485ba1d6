package agent

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/lb"
)

// TestDrain: what an operator drains gets no new connections on the path of user space and on those of the kernel, the
// last endpoint of a Service only by force; another agent goes on with it, and it ends.
func TestDrain(t *testing.T) {
	a, _, ipt, _ := withEngines(t)
	web, dns := service(lb.TCP, "web", 1, 1, 2), service(lb.UDP, "dns", 2, 1)
	services := []*lb.Service{dns, requesting(web, "iptables")}
	mustApply(t, a, services...)
	stop := running(t, a)
	ctx := t.Context()
	host := netip.AddrPortFrom(web.Backends[0].Addr.Addr(), 0)
	eligible := func(a *Agent, id lb.ID) int {
		s, _ := a.LB.Table().Service(id)
		return len(s.Eligible())
	}
	stranded, ok := errors.AsType[*StrandedError](a.Drain(ctx, lb.Drain{Addr: host}, false, false))
	if !ok || stranded.Error() != "no endpoint would be left for new connections to default/dns" {
		t.Fatalf("the last endpoint of dns: %v", stranded)
	}
	if n := len(a.LB.Drains().All()); n != 0 {
		t.Errorf("what is refused drains %d", n)
	}
	of := lb.Drain{Addr: host, Service: web.ID.Service(), By: "test"}
	if err := a.Drain(ctx, of, false, false); err != nil {
		t.Fatal(err)
	}
	n, kernel := eligible(a, web.ID), len(ipt.services[web.ID].Eligible())
	if n != 1 || kernel != 1 || eligible(a, dns.ID) != 1 {
		t.Errorf("of web %d are eligible, in the kernel %d", n, kernel)
	}
	if err := a.Drain(ctx, lb.Drain{Addr: host}, false, true); err != nil || eligible(a, dns.ID) != 0 {
		t.Errorf("by force: %v, and %d are eligible", err, eligible(a, dns.ID))
	}
	if s := a.Status(); s.Drained != 2 {
		t.Errorf("%d are drained", s.Drained)
	}
	a.Submit(Desired{Services: lists.Of(append(services, service(lb.TCP, "late", 3, 1, 2)))})
	other := lb.Drain{Addr: netip.MustParseAddrPort("192.0.2.77:0")}
	if err := a.Drain(ctx, other, false, false); !errors.Is(err, ErrNoEndpoint) {
		t.Errorf("a drain of nothing: %v", err)
	}
	for _, undo := range []bool{false, true} { // it is applied with what was submitted before
		if err := a.Drain(ctx, other, undo, !undo); err != nil {
			t.Fatal(err)
		}
	}
	if n := eligible(a, lb.ID{Namespace: "default", Name: "late", Protocol: lb.TCP}); n != 1 {
		t.Errorf("of a Service that has come since %d are eligible", n)
	}
	stop()

	text, err := json.Marshal(a.State())
	if err != nil {
		t.Fatal(err)
	}
	var state State
	if err := json.Unmarshal(text, &state); err != nil {
		t.Fatal(err)
	}
	next, _, ipt, _ := withEngines(t)
	if err := next.Adopt(state); err != nil {
		t.Fatal(err)
	}
	if n := eligible(next, dns.ID); n != 0 {
		t.Errorf("the successor begins with %d", n)
	}
	mustApply(t, next, services...)
	n, kernel = eligible(next, web.ID), len(ipt.services[web.ID].Eligible())
	if n != 1 || kernel != 1 || eligible(next, dns.ID) != 0 {
		t.Errorf("the successor has %d of web, in the kernel %d", n, kernel)
	}
	defer running(t, next)()
	for _, d := range []lb.Drain{{Addr: host}, of} {
		if err := next.Drain(ctx, d, true, false); err != nil {
			t.Error(err)
		}
	}
	n, kernel = eligible(next, web.ID), len(ipt.services[web.ID].Eligible())
	if n != 2 || kernel != 2 || eligible(next, dns.ID) != 1 {
		t.Errorf("undone there are %d of web, in the kernel %d", n, kernel)
	}
	if err := next.Drain(ctx, of, true, false); !errors.Is(err, ErrNotDrained) {
		t.Errorf("undone twice: %v", err)
	}
}

// TestDrainNode: a node is drained with the endpoints that it gets later, which lose it when they are on another; and
// after a deadline flows are to go elsewhere.
func TestDrainNode(t *testing.T) {
	a, _ := newAgent(t)
	start := time.Now()
	a.Now = func() int64 { return int64(time.Since(start)) }
	web := service(lb.TCP, "web", 1, 1, 2, 3)
	on := func(n ...int) Desired {
		return Desired{Services: lists.Of([]*lb.Service{web}), Hosts: func(node string) (out []lb.Host) {
			for _, i := range n {
				if node == "n1" {
					out = append(out, lb.Host{Service: web.ID.Service(), Addr: web.Backends[i].Addr.Addr()})
				}
			}
			return out
		}}
	}
	applied := make(chan string, 10)
	drained := func() string {
		s, _ := a.LB.Table().Service(web.ID)
		var out strings.Builder
		for _, b := range s.Backends {
			switch {
			case b.Drained && !b.Serving:
				out.WriteByte('x')
			case b.Drained:
				out.WriteByte('d')
			default:
				out.WriteByte('-')
			}
		}
		return out.String()
	}
	if err := a.Apply(t.Context(), on(0)); err != nil {
		t.Fatal(err)
	}
	a.Observe = func(Attempt) { applied <- drained() }
	defer running(t, a)()
	next := func(want string) {
		t.Helper()
		if got := <-applied; got != want {
			t.Errorf("drained are %s, want %s", got, want)
		}
	}
	if err := a.Drain(t.Context(), lb.Drain{Node: "n1"}, false, false); err != nil {
		t.Fatal(err)
	}
	next("d--")
	a.Submit(on(1, 2))
	next("-dd")
	until := lb.Drain{Node: "n1", Deadline: a.Now() + int64(time.Second)}
	if err := a.Drain(t.Context(), until, false, false); err != nil {
		t.Fatal(err)
	}
	next("-dd")
	next("-xx")
	if err := a.Drain(t.Context(), lb.Drain{Node: "n1"}, true, false); err != nil {
		t.Fatal(err)
	}
	next("---")
}
