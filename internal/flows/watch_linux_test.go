package flows

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/conntrack"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// create makes an entry of a flow of UDP, with the port of an address that answers.
func create(t *testing.T, client uint16, to, answers netip.AddrPort) {
	t.Helper()
	src := netip.MustParseAddr("192.0.2.1").AsSlice()
	testbed.Check(t, netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, &netlink.ConntrackFlow{
		FamilyType: unix.AF_INET, TimeOut: 600,
		Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: src, SrcPort: client, DstIP: to.Addr().AsSlice(),
			DstPort: to.Port()},
		Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: answers.Addr().AsSlice(), SrcPort: answers.Port(),
			DstIP: src, DstPort: client}}))
}

var (
	web     = netip.MustParseAddrPort("10.96.0.1:80")
	dns     = netip.MustParseAddrPort("10.96.0.2:53")
	backend = netip.MustParseAddrPort("10.244.0.1:8080")
)

// TestWatch: each who has subscribed gets what it wants, and what others want only if it is of the same kind; after
// Close it gets nothing. There is one socket, from the first to the last, and its counters go on.
func TestWatch(t *testing.T) {
	testbed.NoLeaks(t)
	testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node.Enter(t)
	w := new(Watch)
	type event struct {
		kind conntrack.Kinds
		to   netip.AddrPort
	}
	subscribe := func(want conntrack.Want) (*Subscription, chan event) {
		t.Helper()
		c := make(chan event, 100)
		s, err := w.Subscribe(func(e *conntrack.Event) { c <- event{e.Kind, e.Dst} })
		testbed.Check(t, err)
		testbed.Check(t, s.Want(want))
		return s, c
	}
	begun, news := subscribe(conntrack.Want{Kinds: conntrack.New, Of: conntrack.To, Addrs: []netip.Addr{web.Addr()}})
	socket := w.events
	ended, ends := subscribe(conntrack.Want{Kinds: conntrack.Destroy | conntrack.Lost, Of: conntrack.Any})
	silent, nothing := subscribe(conntrack.Want{})
	if w.events != socket {
		t.Error("there is another socket")
	}
	round := func() {
		t.Helper()
		create(t, 1, dns, backend)
		create(t, 2, web, backend)
		testbed.Check(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
	}
	wants := func(c chan event, want ...event) {
		t.Helper()
		testbed.Eventually(t, "all have come", func() bool { return len(c) >= len(want) })
		got := make(map[event]bool)
		for range len(c) {
			got[<-c] = true
		}
		for _, e := range want {
			if !got[e] || len(got) != len(want) {
				t.Errorf("%v has come, want %v", got, want)
			}
		}
	}
	round()
	wants(ends, event{conntrack.Destroy, dns}, event{conntrack.Destroy, web})
	wants(news, event{conntrack.New, web})
	w.pass(&conntrack.Event{Kind: conntrack.Lost})
	wants(ends, event{kind: conntrack.Lost})
	testbed.Check(t, ended.Close())
	round()
	wants(news, event{conntrack.New, web})
	if handled := w.Stats().Handled; handled != 4 {
		t.Errorf("%d events were handled, want 4", handled)
	}
	testbed.Check(t, begun.Close())
	testbed.Check(t, silent.Close())
	if len(ends)+len(news)+len(nothing) > 0 || w.events != nil || w.Stats().Handled != 4 {
		t.Errorf("after the end: %d, %d and %d events, %+v", len(ends), len(news), len(nothing), w.Stats())
	}
	again, news := subscribe(conntrack.Want{Kinds: conntrack.New, Of: conntrack.Any})
	round()
	wants(news, event{conntrack.New, dns}, event{conntrack.New, web})
	testbed.Check(t, again.Close())
	if handled := w.Stats().Handled; handled != 6 {
		t.Errorf("%d events were handled, want 6", handled)
	}
}

// TestRefusedWant: where the kernel has no room for what one wants, that one has an error, and others go on, and may ask
// for something else.
func TestRefusedWant(t *testing.T) {
	testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node.Enter(t)
	w := new(Watch)
	var many []netip.Addr
	for i := range 64 {
		many = append(many, netip.AddrFrom4([4]byte{10, 97, byte(i), 1}))
	}
	came := make(chan netip.AddrPort, 10)
	first, err := w.Subscribe(func(e *conntrack.Event) { came <- e.Dst })
	testbed.Check(t, err)
	defer first.Close()
	testbed.Check(t, first.Want(conntrack.Want{Kinds: conntrack.New, Of: conntrack.To, Addrs: []netip.Addr{web.Addr()}}))
	for i := 0; err == nil; i++ {
		s, err2 := w.Subscribe(func(*conntrack.Event) {})
		testbed.Check(t, err2)
		defer s.Close()
		if err = s.Want(conntrack.Want{Kinds: conntrack.New, Of: conntrack.To, Addrs: many}); i == 100 {
			t.Fatal("the kernel has room for 100 filters")
		}
	}
	create(t, 1, web, backend)
	testbed.Eventually(t, "the first has its event", func() bool { return len(came) == 1 })
	testbed.Check(t, first.Want(conntrack.Want{Kinds: conntrack.New, Of: conntrack.Any}))
	create(t, 2, dns, backend)
	testbed.Eventually(t, "it has others", func() bool { return len(came) == 2 })
}

// TestEach: it passes entries of protocols of ours that another end answers than was asked.
func TestEach(t *testing.T) {
	testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node.Enter(t)
	create(t, 1, web, backend)
	create(t, 2, web, web)
	begun, seen := 0, []uint16(nil)
	testbed.Check(t, Each(nil, false, func() { begun++ }, func(e *Entry) { seen = append(seen, e.Src.Port()) }))
	if begun != 1 || len(seen) != 1 || seen[0] != 1 {
		t.Errorf("it began %d times, and has seen %d; want the flow of port 1 alone", begun, seen)
	}
}
