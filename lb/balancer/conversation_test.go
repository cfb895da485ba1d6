package balancer

import (
	"math"
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/lb"
)

// conversing is a Balancer with a service of two backends, and a flow there.
func conversing(t *testing.T) (*Balancer, *lb.Service, Flow) {
	t.Helper()
	s := &lb.Service{ID: lb.ID{Namespace: "d", Name: "s", Protocol: lb.UDP},
		Addresses: []lb.Address{{Addr: netip.MustParseAddrPort("10.96.0.1:53")}},
		Backends: []lb.Backend{{Addr: netip.MustParseAddrPort("10.0.0.1:53"), Ready: true, Serving: true},
			{Addr: netip.MustParseAddrPort("10.0.0.2:53"), Ready: true, Serving: true}}}
	b := new(Balancer)
	updateTo(t, b, s)
	return b, s, Flow{Frontend: lb.Frontend{Protocol: lb.UDP, Addr: s.Addresses[0].Addr}, Client: netip.MustParseAddr("192.0.2.1"), Now: 1000}
}

func updateTo(t *testing.T, b *Balancer, all ...*lb.Service) {
	t.Helper()
	table, err := lb.NewTable(all, lb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	b.Update(table)
}

// What is remembered comes back for as long as conntrack would have it, and counts as in flight.
func TestRecall(t *testing.T) {
	for _, stream := range []bool{false, true} {
		b, _, f := conversing(t)
		c, err := b.Pick(f)
		if err != nil {
			t.Fatal(err)
		}
		c.Remember(&Conversation{Key: 7, Answered: true, Stream: stream, Time: f.Now})
		c.Done(nil)
		want := Conversation{Key: 7, Backend: c.Backend(), Answered: true, Stream: stream, Time: f.Now}
		again, v, ok := b.Recall(f, 7)
		if !ok || again != c || v != want {
			t.Errorf("recalled %v %+v, %v; want %+v", again.Backend(), v, ok, want)
		}
		if s := b.Counters().All()[0]; s.InFlight != 1 || s.Picks != 2 || s.Conversations != 1 {
			t.Errorf("stats %+v, want one of two in flight", s)
		}
		again.Done(nil)
		if _, _, ok := b.Recall(f, 8); ok {
			t.Error("another key is known")
		}
		timeout := UDPTimeout
		if stream {
			timeout = UDPStreamTimeout
		}
		b.Sweep(f.Now + timeout - 1)
		if n := b.Counters().All()[0].Conversations; n != 1 {
			t.Error("forgotten too soon")
		}
		f.Now += timeout
		if _, _, ok := b.Recall(f, 7); ok {
			t.Errorf("stream %v: known after %d ns", stream, timeout)
		}
	}
}

// A conversation ends with its backend, its service and the client's right to be there; but not while the backend still
// serves, though new clients go elsewhere.
func TestRecallNoMore(t *testing.T) {
	for name, one := range map[string]struct {
		change func(*lb.Service)
		stays  bool
	}{
		"gone":        {func(s *lb.Service) { s.Backends = s.Backends[1:] }, false},
		"not serving": {func(s *lb.Service) { s.Backends[0].Ready, s.Backends[0].Serving = false, false }, false},
		"terminating": {func(s *lb.Service) { s.Backends[0].Ready = false }, true},
		"not allowed": {func(s *lb.Service) {
			s.Addresses[0].Sources = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		}, false},
		"another service": {func(s *lb.Service) { s.ID.Name = "other" }, false},
	} {
		b, s, f := conversing(t)
		next := *s
		next.Backends, next.Addresses = append([]lb.Backend(nil), s.Backends...), append([]lb.Address(nil), s.Addresses...)
		c, _, _ := picked(t, b, f, s.Backends[0].Addr)
		c.Remember(&Conversation{Key: 7, Time: f.Now})
		c.Done(nil)
		one.change(&next)
		updateTo(t, b, &next)
		if _, _, ok := b.Recall(f, 7); ok != one.stays {
			t.Errorf("%s: recalled %v", name, ok)
		}
	}
}

// picked picks until the backend is the one at addr.
func picked(t *testing.T, b *Balancer, f Flow, addr netip.AddrPort) (Choice, int, bool) {
	t.Helper()
	for i := range 2 {
		c, err := b.Pick(f)
		if err != nil {
			t.Fatal(err)
		}
		if c.Backend() == addr {
			return c, i, true
		}
		c.Done(nil)
	}
	t.Fatalf("%s is not picked", addr)
	return Choice{}, 0, false
}

// Another Balancer goes on with what was remembered, and what came since can be added.
func TestConversationsMove(t *testing.T) {
	b, s, f := conversing(t)
	next := &Balancer{Seed: b.Seed}
	updateTo(t, next, s)
	c, err := b.Pick(f)
	if err != nil {
		t.Fatal(err)
	}
	all := map[uint64]Conversation{}
	for i, at := range []int64{1000, 2000, 3000} {
		v := Conversation{Key: uint64(i + 1), Answered: i > 0, Stream: i > 1, Time: at}
		c.Remember(&v)
		all[v.Key] = v
		from := at
		if i == 0 {
			from = math.MinInt64
		}
		sent := 0
		b.Memory().Conversations(from, func(id lb.ID, list []Conversation) { sent += len(list); next.Memory().RememberConversations(id, list) })
		if sent != 1 {
			t.Errorf("%d conversations since %d, want one", sent, from)
		}
	}
	f.Now = 4000
	for key, v := range all {
		got, w, ok := next.Recall(f, key)
		if v.Backend, v.Time = c.Backend(), f.Now; !ok || w != v || got.Backend() != c.Backend() {
			t.Errorf("recalled %+v, %v; want %+v", w, ok, v)
		}
	}
}

// Keys of different clients, addresses and frontends differ; those of one do not, in another Balancer with the same
// Seed.
func TestConversationKey(t *testing.T) {
	client, local := netip.MustParseAddrPort("192.0.2.1:4000"), netip.MustParseAddr("192.0.2.9")
	f := lb.Frontend{Protocol: lb.UDP, Addr: netip.MustParseAddrPort("10.96.0.1:53")}
	g := lb.Frontend{Protocol: lb.UDP, Addr: netip.MustParseAddrPort("10.96.0.1:54")}
	b, same, other := &Balancer{Seed: 1}, &Balancer{Seed: 1}, &Balancer{Seed: 2}
	key := b.ConversationKey(f, client, local, 0)
	if key != same.ConversationKey(f, client, local, 0) {
		t.Error("the same Seed has other keys")
	}
	for i, k := range []uint64{other.ConversationKey(f, client, local, 0), b.ConversationKey(g, client, local, 0),
		b.ConversationKey(f, netip.AddrPortFrom(client.Addr(), 4001), local, 0), b.ConversationKey(f, client, local, 1),
		b.ConversationKey(f, client, client.Addr(), 0), b.ConversationKey(f, client, netip.Addr{}, 0),
		b.ConversationKey(f, netip.AddrPortFrom(local, 4000), local, 0)} {
		if k == key {
			t.Errorf("key %d is the same", i)
		}
	}
}
