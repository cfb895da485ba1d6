package report

import (
	"encoding/binary"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"go.uber.org/zap"

	"github.com/sluice-lb/sluice/internal/flows"
	"github.com/sluice-lb/sluice/internal/look"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

var (
	asked   = netip.MustParseAddrPort("10.96.0.10:53")
	pod     = netip.MustParseAddrPort("10.244.1.10:5353")
	node    = netip.MustParseAddr("192.0.2.1")
	clients = netip.MustParsePrefix("198.18.0.0/15")

	nftables = Path{Name: "nftables"}
)

// newFlows returns those of one Service of UDP on path nftables.
func newFlows(t *testing.T) *Flows {
	t.Helper()
	s := &lb.Service{ID: lb.ID{Namespace: "default", Name: "dns", Protocol: lb.UDP},
		Addresses: []lb.Address{{Addr: asked, Kind: lb.ClusterIP}}, Backends: []lb.Backend{{Addr: pod, Ready: true}}}
	table, err := lb.NewTable([]*lb.Service{s}, lb.Node{})
	testbed.Check(t, err)
	b := new(balancer.Balancer)
	b.Update(table)
	return New(Config{LB: b, Watch: new(flows.Watch), Log: zap.NewNop(), InUse: func() bool { return true },
		PathOf:     func(lb.ID) Path { return nftables },
		Local:      func() ([]netip.Addr, error) { return []netip.Addr{node}, nil },
		ReadCounts: func(func(lb.Frontend, Count, map[netip.AddrPort]Count)) error { return nil }})
}

// track has the kernel track a flow of UDP of a client with a number.
func track(client uint32, to, from netip.AddrPort) error {
	first := clients.Addr().As4()
	src := binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(first[:])+client)
	return netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, &netlink.ConntrackFlow{FamilyType: unix.AF_INET,
		Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: src, SrcPort: 1000, DstIP: to.Addr().AsSlice(),
			DstPort: to.Port()},
		Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: from.Addr().AsSlice(), SrcPort: from.Port(), DstIP: src,
			DstPort: 1000}, TimeOut: 600})
}

// TestLook: pages have each flow that the kernel forwards once, also where there are more than one part has, and
// nothing else.
func TestLook(t *testing.T) {
	testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node.Enter(t)
	f := newFlows(t)
	const many = 2*partSize + 100 // as many as have to be cut before all are read
	for i := range uint32(many) {
		testbed.Check(t, track(i, asked, pod))
	}
	for i, other := range []struct{ to, from netip.AddrPort }{
		{asked, asked},                                      // not translated
		{asked, netip.AddrPortFrom(node, 40000)},            // a socket of this node
		{netip.MustParseAddrPort("10.96.0.11:53"), pod},     // no Service
		{netip.AddrPortFrom(asked.Addr(), 54), pod},         // not its port
		{asked, netip.MustParseAddrPort("127.0.0.1:40000")}, // a socket, too
	} {
		testbed.Check(t, track(many+uint32(i), other.to, other.from))
	}
	pages := func(q look.Query) map[netip.Addr]int {
		seen := make(map[netip.Addr]int)
		for from, pages := 0, 0; from != look.End; pages++ {
			n, err := 0, error(nil)
			from, err = f.Look(0, from, &q, func(i look.Info) bool {
				seen[i.Client.Addr()]++
				if i.Kernel == nil || i.Kernel.Path != "nftables" || i.Asked != asked || i.Backend != pod || i.Age != -1 ||
					i.Service.Name != "dns" || i.State != look.Unreplied || i.Kernel.Counted {
					t.Fatalf("%+v", i)
				}
				n++
				return n < 1000
			})
			testbed.Check(t, err)
			if n > 1001 || pages > many {
				t.Fatalf("a page of %d", n)
			}
		}
		return seen
	}
	seen := pages(look.Query{})
	for addr, times := range seen {
		if times != 1 || !clients.Contains(addr) {
			t.Fatalf("%s is seen %d times", addr, times)
		}
	}
	if len(seen) != many {
		t.Errorf("%d are seen, want %d", len(seen), many)
	}
	if f.part.all != nil {
		t.Error("a part is kept after the last page")
	}
	some := netip.PrefixFrom(clients.Addr(), 24)
	if seen := pages(look.Query{Client: some}); len(seen) != 256 {
		t.Errorf("of %s %d are seen", some, len(seen))
	}
	if seen := pages(look.Query{Name: "other"}); len(seen) != 0 {
		t.Errorf("of another Service %d are seen", len(seen))
	}
	if next, err := f.Look(1, 0, new(look.Query), func(look.Info) bool { t.Error("another loop"); return true }); next !=
		look.End || err != nil {
		t.Errorf("another loop: %d, %v", next, err)
	}
}

// TestReadCounts: where a path counts itself, its counts are those of the Service and its endpoints, and what it has
// forgotten with an endpoint is in the sum. What is open conntrack says.
func TestReadCounts(t *testing.T) {
	testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node.Enter(t)
	f := newFlows(t)
	f.Accounting = true
	f.PathOf = func(lb.ID) Path { return Path{Name: "ipvs", Counts: true} }
	count := func(n uint64) Count {
		return Count{Total: n, In: flows.Count{Packets: 2 * n, Bytes: 100 * n}, Out: flows.Count{Packets: n, Bytes: 50 * n}}
	}
	f.ReadCounts = func(visit func(lb.Frontend, Count, map[netip.AddrPort]Count)) error {
		visit(lb.Frontend{Protocol: lb.UDP, Addr: asked}, count(5), map[netip.AddrPort]Count{pod: count(3)})
		visit(lb.Frontend{Protocol: lb.TCP, Addr: asked}, count(9), nil) // no Service
		return nil
	}
	testbed.Check(t, track(1, asked, pod))
	all := f.Counts()
	sum, each := count(5), count(3)
	sum.Open, each.Open, sum.Counted, each.Counted = 1, 1, true, true
	got := all[lb.ID{Namespace: "default", Name: "dns", Protocol: lb.UDP}]
	if len(all) != 1 || got.Count != sum || len(got.Endpoints) != 1 || got.Endpoints[pod] != each || got.Chosen {
		t.Errorf("%+v, want %+v and of the endpoint %+v", got, sum, each)
	}
}

// TestEndDrained: at its deadline what is open to a drained endpoint ends, once, and nothing else.
func TestEndDrained(t *testing.T) {
	testbed.NewT(t, testbed.Config{Clients: -1, Pods: -1}).Node.Enter(t)
	f := newFlows(t)
	other := netip.MustParseAddrPort("10.244.1.11:5353")
	fill := func() {
		t.Helper()
		for i, to := range []netip.AddrPort{pod, pod, other} {
			testbed.Check(t, track(uint32(i), asked, to))
		}
	}
	open := func() (n [2]uint64) {
		t.Helper()
		f.counts.at = time.Time{} // it is to count anew
		if of := f.Counts()[lb.ID{Namespace: "default", Name: "dns", Protocol: lb.UDP}]; of != nil {
			n = [2]uint64{of.Open, of.Endpoints[pod].Open}
		}
		return n
	}
	fill()
	f.LB.Drain(lb.NewDrains([]lb.Drain{{Addr: pod, Deadline: 1000}, {Addr: other}}, nil))
	for _, step := range []struct {
		now  int64
		want [2]uint64
	}{{999, [2]uint64{3, 2}}, {1000, [2]uint64{1, 0}}} {
		testbed.Check(t, f.endDrained(step.now))
		if n := open(); n != step.want {
			t.Errorf("at %d there are %v, want %v", step.now, n, step.want)
		}
	}
	testbed.Check(t, track(3, asked, pod))
	testbed.Check(t, f.endDrained(1001))
	if n := open(); n != [2]uint64{2, 1} {
		t.Errorf("what has come since has ended, too: %v", n)
	}
	f.LB.Drain(lb.NewDrains([]lb.Drain{{Addr: pod, Deadline: 2000}}, nil))
	testbed.Check(t, f.endDrained(2000))
	if n := open(); n != [2]uint64{1, 0} {
		t.Errorf("at another deadline there are %v", n)
	}
}

// TestEndedCrosses: what has ended is counted in the process that takes over as before, what Halt has missed excepted,
// and of endpoints that have gone in the sum only.
func TestEndedCrosses(t *testing.T) {
	of := lb.ID{Namespace: "default", Name: "dns", Protocol: lb.UDP}
	end := func(f *Flows, id lb.ID, at netip.AddrPort) {
		f.gone(&look.Info{Service: id, Backend: at, In: 10, Out: 20, Kernel: &look.Kernel{PacketsIn: 1}}, nftables)
	}
	other := lb.ID{Namespace: "default", Name: "other", Protocol: lb.UDP}
	before, after := newFlows(t), newFlows(t)
	end(before, of, pod)
	before.gone(&look.Info{Service: of, Backend: pod, Kernel: &look.Kernel{}}, Path{Name: "queue", Chosen: true}) // a pick
	before.gone(&look.Info{Service: of, Backend: pod, Kernel: &look.Kernel{}}, Path{Name: "ipvs", Counts: true})
	end(before, other, pod)
	first := before.Ended()
	end(before, of, asked) // no endpoint
	since := before.Halt(first)
	end(before, of, pod) // the other process counts
	if len(first) != 2 || len(since) != 1 || since[0].Service != of || len(since[0].Endpoints) != 1 {
		t.Fatalf("first there is %+v, and since then %+v", first, since)
	}
	after.Seed(append(first, since...))
	end(after, of, pod)
	after.prune() // other has gone
	all := after.Ended()
	if len(all) != 1 || all[0].Sum.Total != 3 || all[0].Sum.In.Bytes != 30 || all[0].Sum.Out.Bytes != 60 ||
		len(all[0].Endpoints) != 1 || all[0].Endpoints[pod].Total != 2 {
		t.Errorf("it has %+v", all)
	}
	before.Resume()
	end(before, of, pod)
	if n := before.Ended()[0].Sum.Total; n != 3 {
		t.Errorf("after a hand-over that has failed there are %d", n)
	}
}

// TestNoneGoesDown: what conntrack has counted of a Service does not go down where an end is seen between two looks,
// but begins anew with a Service that has been away.
func TestNoneGoesDown(t *testing.T) {
	f := newFlows(t)
	of := lb.ID{Namespace: "default", Name: "dns", Protocol: lb.UDP}
	gone := lb.ID{Namespace: "default", Name: "other", Protocol: lb.UDP}
	count := func(open, total, bytes uint64) *Counted {
		return &Counted{Count: Count{Open: open, Total: total, In: flows.Count{Bytes: bytes}}}
	}
	for i, step := range []struct{ now, want Count }{
		{count(2, 5, 100).Count, count(2, 5, 100).Count},
		{count(1, 4, 90).Count, count(1, 5, 100).Count},
		{count(1, 6, 95).Count, count(1, 6, 100).Count},
	} {
		all := Counts{of: {Count: step.now}, gone: {Count: step.now}}
		f.counts.keep(all)
		if got := all[of].Count; got != step.want {
			t.Errorf("look %d: %+v, want %+v", i, got, step.want)
		}
	}
	f.counts.ended.of(gone)
	f.prune()
	all := Counts{of: count(0, 1, 1), gone: count(0, 1, 1)}
	if f.counts.keep(all); all[of].Total != 6 || all[gone].Total != 1 {
		t.Errorf("there are %d and, of a Service that had gone, %d", all[of].Total, all[gone].Total)
	}
}
