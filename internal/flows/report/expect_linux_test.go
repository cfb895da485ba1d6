package report

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// TestExpect: of what the kernel forwards before a change is through the end is logged, also where the look at the
// change before is still going on, and where nothing was listened to. Nothing that is not to be logged is listened to.
func TestExpect(t *testing.T) {
	testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node.Enter(t)
	f := newFlows(t)
	logged := make(chan netip.Addr, 3)
	f.Add = func(e *look.Ended) { logged <- e.Client.Addr() }
	uses := false // until the change is through
	f.InUse = func() bool { return uses }
	s := *f.LB.Table().Services()[0]
	f.Expect(&lb.Delta{Added: []*lb.Service{&s}})
	if f.events != nil {
		t.Fatal("it listens to what is not to be logged")
	}
	s.Policies = &lb.Policies{AccessLog: "all"}
	table, err := lb.NewTable([]*lb.Service{&s}, lb.Node{})
	testbed.Check(t, err)
	f.LB.Update(table)
	ends := func(n uint32) {
		t.Helper()
		testbed.Check(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
		testbed.Eventually(t, fmt.Sprintf("the end of %d is logged", n), func() bool { return len(logged) == int(n)+1 })
	}
	for n, expect := range []func(){
		func() { f.Expect(&lb.Delta{Added: []*lb.Service{&s}}) },
		func() { testbed.Check(t, f.follow()) }, // that of a change before, of which nothing is on a kernel path
		func() { uses = true; f.Changed(); testbed.Check(t, f.follow()) },
	} {
		expect()
		testbed.Check(t, track(uint32(n), asked, pod))
		ends(uint32(n))
	}
	f.Close()
	f.Expect(&lb.Delta{Added: []*lb.Service{&s}})
	if f.events != nil {
		t.Error("it listens after the end")
	}
}
