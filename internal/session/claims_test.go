package session

import (
	"math"
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/lb"
	"github.com/sluice-lb/sluice/lb/balancer"
)

var (
	web    = lb.ID{Namespace: "a", Name: "web", Port: "http", Protocol: lb.TCP}
	webTLS = lb.ID{Namespace: "a", Name: "web", Port: "https", Protocol: lb.TCP}
	db     = lb.ID{Namespace: "b", Name: "db", Protocol: lb.TCP}
)

// asked is what clients of these Services ask for.
var asked = map[lb.ID]lb.Frontend{
	web:       {Protocol: lb.TCP, Addr: netip.AddrPortFrom(address(109), 80)},
	webTLS:    {Protocol: lb.TCP, Addr: netip.AddrPortFrom(address(109), 443)},
	db:        {Protocol: lb.TCP, Addr: netip.AddrPortFrom(address(110), 80)},
	(lb.ID{}): {Protocol: lb.TCP, Addr: netip.AddrPortFrom(address(111), 80)}, // no Service
}

// services returns a Balancer that has them, with policies for all.
func services(t *testing.T, policies *lb.Policies) *balancer.Balancer {
	t.Helper()
	var all []*lb.Service
	for _, id := range []lb.ID{web, webTLS, db} {
		all = append(all, &lb.Service{ID: id, Addresses: []lb.Address{{Addr: asked[id].Addr}}, Policies: policies})
	}
	table, err := lb.NewTable(all, lb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	b := new(balancer.Balancer)
	b.Update(table)
	return b
}

func address(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }

// fill admits connections of a Service, each of another client unless clients are one, until one is refused.
func fill(t *testing.T, cs *Claims, id lb.ID, limit int64, client func(i int) netip.Addr, n *Counters) (all []Claim) {
	t.Helper()
	for i := range limit {
		c, ok := cs.Admit(asked[id], client(int(i)), Room{Conns: limit - i, Dials: math.MaxInt32}, n)
		if !ok {
			return all
		}
		all = append(all, c)
	}
	t.Fatalf("none of %d connections is refused", limit)
	return nil
}

// A Service has its share of connections and no more, with all of its ports, and another finds room.
func TestServiceShare(t *testing.T) {
	var n Counters
	b := services(t, nil)
	cs := NewClaims(shares.Shares{Service: 90, Client: 100}, b, 0)
	all := fill(t, &cs, web, 200, address, &n)
	if len(all) != 180 || n.ServiceConns.Load() != 1 {
		t.Errorf("%d of 200 for one Service of a share of 90 %%, %d refused", len(all), n.ServiceConns.Load())
	}
	if s := statsOf(b, web); s.ID != web || s.OverShare != 1 {
		t.Errorf("%v exceeded its share %d times, want %v once", s.ID, s.OverShare, web)
	}
	left := Room{Conns: int64(200 - len(all)), Dials: math.MaxInt32}
	if _, ok := cs.Admit(asked[webTLS], address(1), left, &n); ok {
		t.Error("another port of the Service has a share of its own")
	}
	if _, ok := cs.Admit(asked[db], address(1), left, &n); !ok {
		t.Error("another Service finds no room")
	}
	for _, c := range all {
		cs.End(c)
	}
	if cs.services.by[web.Service()] != nil {
		t.Error("a Service without connections is remembered")
	}
	if _, ok := cs.Admit(asked[web], address(1), Room{Conns: 199, Dials: 1}, &n); !ok {
		t.Error("after its connections have ended the Service gets none")
	}
}

// statsOf returns what is counted of a Service.
func statsOf(b *balancer.Balancer, id lb.ID) (none balancer.Stats) {
	for _, s := range b.Counters().All() {
		if s.ID == id {
			return s
		}
	}
	return none
}

// A client has its share of all Services together, and of what no Service has.
func TestClientShare(t *testing.T) {
	var n Counters
	cs := NewClaims(shares.Shares{Service: 100, Client: 75}, services(t, nil), 0)
	one := func(int) netip.Addr { return address(7) }
	if all := fill(t, &cs, web, 200, one, &n); len(all) != 150 || n.ClientConns.Load() != 1 {
		t.Errorf("%d of 200 for one client of a share of 75 %%, %d refused", len(all), n.ClientConns.Load())
	}
	for _, id := range []lb.ID{db, {}} {
		if _, ok := cs.Admit(asked[id], address(7), Room{Conns: 50, Dials: 9}, &n); ok {
			t.Errorf("the client gets more of %v", id)
		}
	}
	if _, ok := cs.Admit(asked[web], address(8), Room{Conns: 50, Dials: 9}, &n); !ok {
		t.Error("another client of the Service finds no room")
	}
}

// TestClientShareOfIPv6: the addresses of a /64 have the share of one client, and each connection keeps its own
// address.
func TestClientShareOfIPv6(t *testing.T) {
	var n Counters
	cs := NewClaims(shares.Shares{Service: 100, Client: 75}, services(t, nil), 0)
	at := func(i int) netip.Addr {
		return netip.AddrFrom16([16]byte{0: 0x20, 7: 1, 14: byte(i >> 8), 15: byte(i)})
	}
	all := fill(t, &cs, web, 200, at, &n)
	if len(all) != 150 || n.ClientConns.Load() != 1 {
		t.Errorf("%d of 200 for one /64 of a share of 75 %%, %d refused", len(all), n.ClientConns.Load())
	}
	if _, ok := cs.Admit(asked[web], netip.MustParseAddr("2000:0:0:2::"), Room{Conns: 50, Dials: 9}, &n); !ok {
		t.Error("another /64 finds no room")
	}
	for i, c := range all {
		if c.Client() != at(i) {
			t.Fatalf("client %v, want %v", c.Client(), at(i))
		}
		cs.End(c)
	}
	if len(cs.clients.by) != 1 {
		t.Errorf("%d clients are remembered, want the one with a connection", len(cs.clients.by)-1)
	}
}

// Dials have a share of their own, which a dial that is over gives back.
func TestDialShare(t *testing.T) {
	var n Counters
	cs := NewClaims(shares.Shares{Service: 50, Client: 100}, services(t, nil), 0)
	free := Room{Conns: math.MaxInt32, Dials: 10}
	var dials []Claim
	for c, ok := cs.Admit(asked[web], address(1), free, &n); ok; c, ok = cs.Admit(asked[web], address(1), free, &n) {
		c.Dial()
		free.Dials--
		dials = append(dials, c)
	}
	if len(dials) != 5 || n.ServiceDials.Load() != 1 {
		t.Fatalf("%d of 10 dials for a share of 50 %%, %d refused", len(dials), n.ServiceDials.Load())
	}
	dials[0].Dialled()
	free.Dials++
	if _, ok := cs.Admit(asked[web], address(1), free, &n); !ok {
		t.Error("the place of a dial that is over is not given again")
	}
}

// What another process has had counts, also beyond the share.
func TestAdopt(t *testing.T) {
	var n Counters
	cs := NewClaims(shares.Shares{Service: 50, Client: 100}, services(t, nil), 0)
	for range 8 {
		cs.Adopt(web, address(1), false)
	}
	if _, ok := cs.Admit(asked[web], address(2), Room{Conns: 2, Dials: 9}, &n); ok || cs.Refused != lb.OverShare {
		t.Error("the Service gets more than its share, since what it has had is not counted")
	}
}

// A limit of the Service is given back with the connection, and by one that a share refuses.
func TestLimitsOfClaims(t *testing.T) {
	var n Counters
	b := services(t, &lb.Policies{MaxConnections: 2, MaxClientConnections: 1, MaxClientConnectionRate: 1 << 20})
	cs := NewClaims(shares.Shares{Service: 50, Client: 100}, b, 0)
	plenty := Room{Conns: 100, Dials: 100}
	for range 3 {
		if _, ok := cs.Admit(asked[web], address(1), Room{}, &n); ok {
			t.Fatal("a connection beyond the share is admitted")
		}
	}
	first, ok := cs.Admit(asked[web], address(1), plenty, &n)
	if !ok {
		t.Fatal("connections that a share refuses take what the limit allows")
	}
	if _, ok := cs.Admit(asked[web], address(1), plenty, &n); ok || n.OverClientConnections.Load() != 1 ||
		cs.Refused != lb.OverClient {
		t.Error("a client gets more connections than it may have")
	}
	cs.Adopt(web, address(2), true)
	if _, ok := cs.Admit(asked[web], address(3), plenty, &n); ok || n.OverConnections.Load() != 1 ||
		cs.Refused != lb.OverConnections {
		t.Error("the Service gets more connections than it may have")
	}
	if _, ok := cs.Admit(asked[webTLS], address(1), plenty, &n); !ok {
		t.Error("another port has not limits of its own")
	}
	cs.End(first)
	if _, ok := cs.Admit(asked[web], address(1), plenty, &n); !ok {
		t.Error("the place of a connection that has ended is not given again")
	}
	if s := statsOf(b, web); s.Limited != 2 {
		t.Errorf("%d clients were beyond a limit, want 2", s.Limited)
	}
}
