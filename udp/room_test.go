package udp

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/internal/eventloop"
	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

// still is a transport that moves nothing.
type still struct{}

func (still) do(fn func()) error   { fn(); return nil }
func (still) post(fn func()) error { fn(); return nil }
func (still) walk()                {}
func (still) bind(_ *listener, addr netip.AddrPort, _ bool) (netip.AddrPort, error) {
	return addr, nil
}
func (still) start(*listener) error                      { return nil }
func (still) stop(*listener)                             {}
func (still) leave(*listener)                            {}
func (still) open(*flow, netip.AddrPort) error           { return nil }
func (still) connect(*flow, netip.AddrPort, int64) error { return nil }
func (still) watch(*flow) error                          { return nil }
func (still) after(*flow, int64)                         {}
func (still) resend(*flow)                               {}
func (still) close(*flow)                                {}

func (still) inherit(*flow, netip.AddrPort) (none loopFlow, ok bool) { return none, true }

// room is a shard whose flows move nothing, with a listener for each of some Services.
type room struct {
	*shard
	t    *testing.T
	lns  []*listener
	now  int64
	made int // spoofed sources so far
}

// newRoom makes one, with the shares that flags have by default.
func newRoom(t *testing.T, services int, edit func(*Server)) *room {
	t.Helper()
	var list []*lb.Service
	for i := range services {
		list = append(list, service(i+1, netip.MustParseAddrPort("192.0.2.9:53")))
	}
	table, err := lb.NewTable(list, lb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{LB: new(balancer.Balancer), MaxFlows: 1000, Shares: shares.Shares{Service: 90, Client: 97}}
	s.LB.Update(table)
	if edit != nil {
		edit(s)
	}
	r := &room{shard: newShard(s, 1), t: t}
	r.io = still{}
	for i := range services {
		r.lns = append(r.lns, r.newListener(frontend(i+1, false)))
	}
	return r
}

// client is the n-th client of 10.0.0.0/8; spoofed ones are in 172.16.0.0/12.
func (r *room) client(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 4000)
}

// ask sends a question, which is answered or not, and returns the flow.
func (r *room) ask(service int, client netip.AddrPort, answered bool) *flow {
	r.now++
	f, _ := r.lns[service].flow(&flowKey{client: client}, r.now)
	if f != nil && answered {
		f.answered(r.now)
	}
	return f
}

// flood has so many spoofed sources ask once.
func (r *room) flood(service, n int, answered bool) {
	for range n {
		r.made++
		n := r.made % 200_000
		addr := netip.AddrFrom4([4]byte{172, byte(16 + n>>16), byte(n >> 8), byte(n)})
		if r.ask(service, netip.AddrPortFrom(addr, 53), answered) == nil {
			r.t.Fatal("a source has no flow")
		}
	}
}

// has returns how many flows a Service has.
func (r *room) has(service int) int {
	return int(r.services.all[r.server.LB.Table().Services()[service].ID.Service()].total())
}

// near reports whether two numbers of flows differ by 2 percent of all at most.
func (r *room) near(a, b int) bool { return max(a-b, b-a) <= r.places/50 }

// A Service alone gets its share, several get equal parts, and one that comes late finds room at once.
func TestServiceShare(t *testing.T) {
	for _, answered := range []bool{false, true} {
		r := newRoom(t, 4, nil)
		r.flood(0, 5000, answered)
		if n := r.has(0); n != 900 {
			t.Errorf("one Service has %d flows of 1,000, want 900", n)
		}
		if s := r.count.EvictedService.Load(); s != 4100 || r.count.Evicted.Load() != s {
			t.Errorf("%d flows were evicted for a share, want 4,100", s)
		}
		if s := r.server.LB.Counters().All(); s[0].OverShare != 4100 || s[1].OverShare != 0 {
			t.Errorf("two Services exceeded their shares %d and %d times, want 4,100 and 0", s[0].OverShare, s[1].OverShare)
		}
		for range 20_000 { // in turn, each as much as it can
			r.flood(0, 1, answered)
			r.flood(1, 1, answered)
			r.flood(2, 1, answered)
		}
		for i := range 3 {
			if n := r.has(i); !r.near(n, 333) {
				t.Errorf("Service %d of three has %d flows of 1,000", i, n)
			}
		}
		var quiet []*flow
		for i := range 20 {
			quiet = append(quiet, r.ask(3, r.client(i), false))
			r.flood(i%3, 500, answered)
		}
		for i, f := range quiet {
			if r.lns[3].flows[flowKey{client: r.client(i)}] != f {
				t.Errorf("flow %d of a Service within its share was evicted", i)
			}
		}
		r.check()
	}
}

// Flows that are in use stay, whatever spoofed sources send to their own Service or to another, answered or not.
func TestKnownFlowsStay(t *testing.T) {
	for _, tt := range []struct{ known, flooded int }{{500, 0}, {500, 1}, {800, 0}, {800, 1}} {
		for _, answered := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d, flood at %d, answered %v", tt.known, tt.flooded, answered), func(t *testing.T) {
				r := newRoom(t, 2, nil)
				all := make([]*flow, tt.known)
				for range 2 {
					for i := range all {
						all[i] = r.ask(0, r.client(i), true)
					}
				}
				if tt.flooded == 0 && tt.known > 787 { // an eighth of 900 is for new clients
					all = all[tt.known-787:]
				}
				r.flood(tt.flooded, 200_000, answered)
				for i, f := range all {
					if f.service == nil || r.lns[0].flows[f.key] != f {
						t.Fatalf("flow %d was evicted", i)
					}
				}
				r.check()
			})
		}
	}
}

// Known flows of a Service do not keep new clients of it out, nor those of another.
func TestNewClientsFindRoom(t *testing.T) {
	r := newRoom(t, 2, nil)
	for range 2 {
		for i := range 900 {
			r.ask(0, r.client(i), true)
		}
	}
	for s := range 2 {
		var fresh []*flow
		for i := range 50 {
			fresh = append(fresh, r.ask(s, r.client(5000+i), true))
		}
		for i, f := range fresh {
			if again := r.ask(s, r.client(5000+i), true); again != f || f.assurance != known {
				t.Errorf("new client %d of Service %d has lost its flow", i, s)
			}
		}
	}
	r.check()
}

// A flow that leaves its backend makes room first, also one among many that are in use.
func TestOneThatLeavesMakesRoom(t *testing.T) {
	r := newRoom(t, 1, nil)
	for range 2 {
		for i := range 900 {
			r.ask(0, r.client(i), true)
		}
	}
	leaving := r.lns[0].flows[flowKey{client: r.client(500)}]
	leaving.leave(r.now)
	r.ask(0, r.client(5000), true)
	if r.has(0) != 900 || r.lns[0].flows[leaving.key] == leaving {
		t.Error("the flow that leaves is still there")
	}
}

// A client address alone gets its share, and flows of others stay.
func TestClientShare(t *testing.T) {
	r := newRoom(t, 12, func(s *Server) { s.Shares.Client = 50 })
	other := r.ask(11, r.client(1), true)
	greedy := r.client(0).Addr()
	for port := uint16(1); port <= 3000; port++ {
		r.ask(int(port)%11, netip.AddrPortFrom(greedy, port), true)
	}
	if n := r.clients.all[greedy].total(); !r.near(int(n), 500) {
		t.Errorf("a client has %d flows of 1,000, want half", n)
	}
	if n := r.count.EvictedClient.Load(); n < 2400 || r.count.Evicted.Load() != n {
		t.Errorf("%d of %d flows were evicted for the share of a client", n, r.count.Evicted.Load())
	}
	if r.lns[11].flows[other.key] != other {
		t.Error("the flow of another client was evicted")
	}
	r.check()
}

// All flows together have half of the descriptors, and no more than others leave.
func TestHalfOfDescriptors(t *testing.T) {
	budget := &eventloop.Budget{Limit: 200}
	r := newRoom(t, 1, func(s *Server) { s.Descriptors = budget; s.Shares.Service = 0 })
	r.flood(0, 500, true)
	if n := budget.Used(); n != 100 {
		t.Errorf("%d of 200 descriptors are in use, want 100", n)
	}
	if !budget.Take(100) {
		t.Error("TCP does not get the other half")
	}
	r.flood(0, 500, true) // one for another
	if n := budget.Exhausted(); n != 0 {
		t.Errorf("the budget was exhausted %d times", n)
	}
	r.lns[0].closeFlows()
	if n := budget.Used(); n != 100 {
		t.Errorf("%d descriptors are in use, want 100", n)
	}
}

// While there is no port nothing makes room.
func TestNoPortNoRoom(t *testing.T) {
	r := newRoom(t, 1, nil)
	r.flood(0, 1000, true)
	before := r.count.Evicted.Load()
	r.portless = r.now + 10
	if f := r.ask(0, r.client(1), true); f != nil || r.count.Evicted.Load() != before {
		t.Errorf("a flow %v while there is no port, %d evicted", f != nil, r.count.Evicted.Load()-before)
	}
	r.now += 10
	if f := r.ask(0, r.client(1), true); f == nil {
		t.Error("no flow after the pause")
	}
}

// More flows were taken over than there may be: their number goes down as new ones come.
func TestBeyondTheLimit(t *testing.T) {
	r := newRoom(t, 1, nil)
	r.flood(0, 900, true)
	r.places = 500
	r.flood(0, 450, true)
	if n := r.has(0); n > 500 {
		t.Errorf("%d flows, want 500 at most", n)
	}
	r.check()
}

// Whatever happens to flows, lists and counts agree.
func TestRoom(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	r := newRoom(t, 5, func(s *Server) { s.MaxFlows = 50 })
	for i := range 50_000 {
		f := r.ask(rnd.IntN(5), r.client(rnd.IntN(1+rnd.IntN(100))), rnd.IntN(2) == 0)
		switch {
		case f == nil:
			t.Fatal("no flow")
		case rnd.IntN(20) == 0:
			f.leave(r.now)
		case rnd.IntN(20) == 0:
			f.close()
		}
		if i%10 == 0 {
			r.check()
		}
	}
	for _, ln := range r.lns {
		ln.closeFlows()
	}
	if r.check(); r.ages.len != 0 || len(r.services.all) != 0 || len(r.clients.all) != 0 {
		t.Errorf("%d flows, %d Services and %d clients are left", r.ages.len, len(r.services.all), len(r.clients.all))
	}
}

// check looks whether every flow is where it has to be.
func (r *room) check() {
	r.t.Helper()
	services, clients := map[lb.Name][assurances]int{}, map[netip.Addr][assurances]int{}
	for f := r.ages.first; f != nil; f = f.links[byAge].next {
		n, m := services[f.service.key], clients[f.source.key]
		n[f.assurance]++
		m[f.assurance]++
		services[f.service.key], clients[f.source.key] = n, m
	}
	oneShots := 0
	for f := r.oneShots.first; f != nil; f = f.links[byAnswer].next {
		if oneShots++; !f.oneShot || f.followed == settling || !f.replied || f.leaving != 0 {
			r.t.Fatalf("a flow is among the oneShots: %+v", f)
		}
	}
	if oneShots != r.oneShots.len {
		r.t.Fatalf("%d oneShots in the list, which says %d", oneShots, r.oneShots.len)
	}
	if r.ages.len > r.places {
		r.t.Fatalf("%d flows, want %d at most", r.ages.len, r.places)
	}
	checkHolders(r.t, &r.services, services)
	checkHolders(r.t, &r.clients, clients)
}

func checkHolders[K comparable](t *testing.T, hs *holders[K], want map[K][assurances]int) {
	t.Helper()
	if len(hs.all) != len(want) {
		t.Fatalf("%d holders, want %d", len(hs.all), len(want))
	}
	for k, n := range want {
		h := hs.all[k]
		if h.key != k || h.count(unknown) != n[unknown] || h.count(known) != n[known] {
			t.Fatalf("%v has %d and %d flows, want %v", k, h.count(unknown), h.count(known), n)
		}
	}
	for s, h := range hs.most {
		if h != nil && (hs.all[h.key] != h || h.count(assurance(s)) == 0) {
			t.Fatalf("%v is said to have most, and has none", h.key)
		}
	}
}

// TestClientShareOfIPv6: the sources that one host of IPv6 can have, a /64, have the share of one client.
func TestClientShareOfIPv6(t *testing.T) {
	r := newRoom(t, 1, func(s *Server) { s.Shares = shares.Shares{Service: 100, Client: 50} })
	at := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte{0: 0x20, 14: byte(i >> 8), 15: byte(i)}), 4000)
	}
	for i := range 600 {
		r.ask(0, at(i), true)
	}
	if n, evicted := r.has(0), r.count.EvictedClient.Load(); n != 500 || evicted != 100 {
		t.Errorf("one /64 has %d flows of 1,000, and %d were evicted, want 500 and 100", n, evicted)
	}
	r.check()
}
