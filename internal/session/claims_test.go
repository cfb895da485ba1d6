package session

import (
	"math"
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/internal/shares"
	"github.com/sluice-lb/sluice/lb"
)

var web, db = lb.ID{Namespace: "a", Name: "web", Port: "http", Protocol: lb.TCP}, lb.ID{Namespace: "b", Name: "db"}

func address(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }

// fill admits connections of a Service, each of another client unless clients are one, until one is refused.
func fill(t *testing.T, cs *Claims, id lb.ID, limit int64, client func(i int) netip.Addr, n *Counters) (all []Claim) {
	t.Helper()
	for i := range limit {
		c, ok := cs.Admit(&id, client(int(i)), Room{Conns: limit - i, Dials: math.MaxInt32}, n)
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
	table, err := lb.NewTable([]*lb.Service{{ID: web, Addresses: []lb.Address{{Addr: netip.AddrPortFrom(address(9), 80)}}}}, lb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	b := new(lb.Balancer)
	b.Update(table)
	cs := NewClaims(shares.Shares{Service: 90, Client: 100}, b)
	all := fill(t, &cs, web, 200, address, &n)
	if len(all) != 180 || n.ServiceConns.Load() != 1 {
		t.Errorf("%d of 200 for one Service of a share of 90 %%, %d refused", len(all), n.ServiceConns.Load())
	}
	if s := b.Stats()[0]; s.ID != web || s.OverShare != 1 {
		t.Errorf("%v exceeded its share %d times, want %v once", s.ID, s.OverShare, web)
	}
	left := Room{Conns: int64(200 - len(all)), Dials: math.MaxInt32}
	other := web
	other.Port = "https"
	if _, ok := cs.Admit(&other, address(1), left, &n); ok {
		t.Error("another port of the Service has a share of its own")
	}
	if _, ok := cs.Admit(&db, address(1), left, &n); !ok {
		t.Error("another Service finds no room")
	}
	for _, c := range all {
		cs.End(c)
	}
	if cs.services.by[web.Service()] != nil {
		t.Error("a Service without connections is remembered")
	}
	if _, ok := cs.Admit(&web, address(1), Room{Conns: 199, Dials: 1}, &n); !ok {
		t.Error("after its connections have ended the Service gets none")
	}
}

// A client has its share of all Services together, and of what no Service has.
func TestClientShare(t *testing.T) {
	var n Counters
	cs := NewClaims(shares.Shares{Service: 100, Client: 75}, new(lb.Balancer))
	one := func(int) netip.Addr { return address(7) }
	if all := fill(t, &cs, web, 200, one, &n); len(all) != 150 || n.ClientConns.Load() != 1 {
		t.Errorf("%d of 200 for one client of a share of 75 %%, %d refused", len(all), n.ClientConns.Load())
	}
	for _, id := range []*lb.ID{&db, nil} {
		if _, ok := cs.Admit(id, address(7), Room{Conns: 50, Dials: 9}, &n); ok {
			t.Errorf("the client gets more of %v", id)
		}
	}
	if _, ok := cs.Admit(&web, address(8), Room{Conns: 50, Dials: 9}, &n); !ok {
		t.Error("another client of the Service finds no room")
	}
}

// Dials have a share of their own, which a dial that is over gives back.
func TestDialShare(t *testing.T) {
	var n Counters
	cs := NewClaims(shares.Shares{Service: 50, Client: 100}, new(lb.Balancer))
	free := Room{Conns: math.MaxInt32, Dials: 10}
	var dials []Claim
	for c, ok := cs.Admit(&web, address(1), free, &n); ok; c, ok = cs.Admit(&web, address(1), free, &n) {
		c.Dial()
		free.Dials--
		dials = append(dials, c)
	}
	if len(dials) != 5 || n.ServiceDials.Load() != 1 {
		t.Fatalf("%d of 10 dials for a share of 50 %%, %d refused", len(dials), n.ServiceDials.Load())
	}
	dials[0].Dialled()
	free.Dials++
	if _, ok := cs.Admit(&web, address(1), free, &n); !ok {
		t.Error("the place of a dial that is over is not given again")
	}
}

// What another process has had counts, also beyond the share.
func TestAdopt(t *testing.T) {
	var n Counters
	cs := NewClaims(shares.Shares{Service: 50, Client: 100}, new(lb.Balancer))
	for range 8 {
		cs.Adopt(web, address(1))
	}
	if _, ok := cs.Admit(&web, address(2), Room{Conns: 2, Dials: 9}, &n); ok {
		t.Error("the Service gets more than its share, since what it has had is not counted")
	}
}
