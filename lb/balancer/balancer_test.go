package balancer

import (
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-lb/sluice/affinity"
	"github.com/sluice-lb/sluice/lb"
)

var (
	front  = netip.MustParseAddrPort("10.0.0.1:80")
	client = netip.MustParseAddr("192.0.2.1")

	// here is the node of all tables that have no other.
	here = lb.Node{
		Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8::7")},
		PodCIDRs:  prefixes("10.1.7.0/24"),
	}
)

// address returns the address of backend i.
func address(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 8080)
}

// echo returns a service at front whose ready backends have these numbers.
func echo(backends ...int) lb.Service {
	s := lb.Service{
		ID:        lb.ID{Namespace: "default", Name: "echo", Protocol: lb.TCP},
		Addresses: []lb.Address{{Addr: front}},
	}
	for _, i := range backends {
		s.Backends = append(s.Backends, lb.Backend{Addr: address(i), Ready: true, Serving: true})
	}
	return s
}

func sticky(s lb.Service, timeout int64) lb.Service {
	s.AffinityTimeout = timeout
	return s
}

func numbers(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// balancing returns a balancer whose table has these services.
func balancing(tb testing.TB, services ...lb.Service) *Balancer {
	tb.Helper()
	b := new(Balancer)
	b.Update(mustTable(tb, services))
	return b
}

// mustPick picks at front unless f says otherwise. It may be called by any
// goroutine, and returns the zero Choice after an error.
func mustPick(tb testing.TB, b *Balancer, f Flow) Choice {
	tb.Helper()
	if !f.Frontend.Addr.IsValid() {
		f.Frontend = lb.Frontend{Protocol: lb.TCP, Addr: front}
	}
	c, err := b.Pick(f)
	if err != nil {
		tb.Errorf("pick: %v", err)
	}
	return c
}

func TestZeroValues(t *testing.T) {
	var b Balancer
	if _, err := b.Pick(Flow{}); !errors.Is(err, ErrNoService) {
		t.Errorf("pick: got %v, want ErrNoService", err)
	}
	if n := b.Table().Len(); n != 0 {
		t.Errorf("empty balancer has %d services", n)
	}
	b.Sweep(1)
	b.Update(nil)
	b.Update(&lb.Table{})
	if s := b.Counters().All(); len(s) != 0 {
		t.Errorf("empty balancer has stats %v", s)
	}
	if _, ok := new(lb.Table).Service(lb.ID{}); ok {
		t.Error("empty table has a service")
	}

	var c Choice
	if c.Valid() || c.Live() || c.Backend().IsValid() || c.Service() != (lb.ID{}) {
		t.Errorf("the zero Choice claims to be something")
	}
	c.Done(nil)
	var tried Tried
	tried.Add(c)
	if tried != (Tried{}) {
		t.Error("the zero Choice was remembered as tried")
	}
}

// Browsers open several connections at once.
func TestConnectionsOfNewClientStayTogether(t *testing.T) {
	const connections = 2
	clients := 20000
	if testing.Short() {
		clients = 2000 // where others have the processors too, each costs a turn of the kernel's
	}
	b := balancing(t, sticky(echo(numbers(10)...), 1e9))
	var chosen [connections][]Choice
	begun := make([]atomic.Int32, clients)
	var wg sync.WaitGroup
	for j := range connections {
		chosen[j] = make([]Choice, clients)
		wg.Go(func() {
			for i := range clients {
				begun[i].Add(1)
				for spins := 0; begun[i].Load() < connections; spins++ {
					if spins > 10000 { // there may be one processor only
						runtime.Gosched()
					}
				} // so that all pick at the same moment
				from := netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})
				chosen[j][i] = mustPick(t, b, Flow{Client: from})
			}
		})
	}
	wg.Wait()
	for i, c := range chosen[0] {
		if c != chosen[1][i] {
			t.Fatalf("client %d was sent to %s and %s", i, c.Backend(), chosen[1][i].Backend())
		}
	}
}

// A Pick that is still busy with the old table may remember a backend after
// Update has made everybody forget it.
func TestStaleMemoryIsNotUsed(t *testing.T) {
	b := balancing(t, sticky(echo(1), 1e9))
	old := mustPick(t, b, Flow{Client: client})
	b.Update(mustTable(t, []lb.Service{sticky(echo(2), 1e9)}))
	b.load().service(0).state.sticky.Load().Put(affinity.KeyOf(client), old.backend, 0)
	for range 2 {
		if c := mustPick(t, b, Flow{Client: client}); c.Backend() != address(2) {
			t.Errorf("sent to %s, which has left", c.Backend())
		}
	}
}

func TestUnchangedServiceIsNotPreparedAgain(t *testing.T) {
	var b Balancer
	some := func() lb.Service {
		s := echo(1, 2)
		s.Backends[0].Local = true
		return s
	}
	b.Update(mustTable(t, []lb.Service{sticky(some(), 1e9), {ID: lb.ID{Name: "other", Protocol: lb.TCP}}}))
	before := b.load().service(0)
	// Another position, other slices with equal contents, and other addresses.
	s := sticky(some(), 1e9)
	s.Addresses = []lb.Address{{Addr: netip.MustParseAddrPort("10.0.0.2:80"), Kind: lb.ExternalIP, Local: true}}
	first := lb.Service{ID: lb.ID{Name: "first", Protocol: lb.TCP}}
	b.Update(mustTable(t, []lb.Service{first, s}))
	if b.load().service(1) != before {
		t.Error("prepared again")
	}
	s.AffinityTimeout = 2e9
	b.Update(mustTable(t, []lb.Service{first, s}))
	if after := b.load().service(1); after.affinityTimeout != 2e9 || after.state != before.state {
		t.Error("kept the old timeout, or lost its state")
	}
}

func TestCountersSurviveBackends(t *testing.T) {
	var b Balancer
	update := func(backends ...int) { b.Update(mustTable(t, []lb.Service{echo(backends...)})) }
	update(1)
	long := mustPick(t, &b, Flow{})
	mustPick(t, &b, Flow{}).Done(errors.New("failed"))
	check := func(when string, picks, inFlight uint64, backends int) {
		t.Helper()
		s := b.Counters().All()[0]
		if s.Picks != picks || s.InFlight != inFlight || s.Failures != 1 || len(s.Backends) != backends {
			t.Errorf("%s: got %+v, want %d picks, %d in flight, %d backends", when, s, picks, inFlight, backends)
		}
	}
	update(2)
	check("left with a connection", 2, 1, 2)
	update(1, 2)
	check("returned", 2, 1, 2)
	if !long.Live() {
		t.Error("not live though its backend is back")
	}
	update(2)
	update()
	check("left again", 2, 1, 1)
	long.Done(nil)
	check("done", 2, 0, 0)
	update(1)
	check("returned as a new one", 2, 0, 1)
	if long.Live() {
		t.Error("live at a backend that was forgotten")
	}
}

func TestUpdateWhilePicking(t *testing.T) {
	up := func(backends ...int) lb.Service { return sticky(echo(backends...), 1e9) }
	waning := up(1, 2, 3)
	waning.Backends[0] = lb.Backend{Addr: address(1), Serving: true, Terminating: true, Local: true}
	waning.Addresses = everyAddress
	var tables []*lb.Table
	for _, services := range [][]lb.Service{{up(1, 2, 3)}, {waning}, {up(3, 4)}, {echo(5)}, {up()}, {}} {
		tables = append(tables, mustTable(t, services))
	}
	var b Balancer
	stop := make(chan struct{})
	var wg, updater sync.WaitGroup
	updater.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			b.Update(tables[i%len(tables)])
			b.Counters().All()
			b.Sweep(int64(i))
			b.Explain(Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: front}, Client: client})
		}
	})
	for g := range 4 {
		wg.Go(func() {
			var tried Tried
			for i := range 5000 {
				f := Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: everyAddress[i%3].Addr}, Now: int64(i), Tried: &tried}
				if g%2 == 0 {
					f.Client = netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
				}
				c, err := b.Pick(f)
				if err != nil {
					if c.Valid() || !errors.Is(err, ErrNoBackend) && !errors.Is(err, ErrNoLocalBackend) && !errors.Is(err, ErrNoService) {
						t.Errorf("got %v, %v", c, err)
					}
					continue
				}
				if i := int(c.Backend().Addr().As4()[3]); i < 1 || i > 5 {
					t.Errorf("chose %s", c.Backend())
				}
				c.Live()
				if tried.Add(c); i%5 == 0 {
					tried = Tried{}
				}
				c.Done(nil)
			}
		})
	}
	wg.Wait()
	close(stop)
	updater.Wait()

	b.Update(tables[0])
	for _, s := range b.Counters().All()[0].Backends {
		if s.InFlight != 0 || !s.Live || !s.Eligible {
			t.Errorf("in the end: %+v", s)
		}
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	s := echo(numbers(20)...)
	s.Addresses = slices.Clone(everyAddress)
	s.Addresses[4].Sources = prefixes("192.0.2.0/24", "198.51.100.0/24")
	s.Backends[7].Local, s.Backends[8].Local = true, true
	externalIP := lb.Frontend{Protocol: lb.TCP, Addr: everyAddress[3].Addr}
	loadBalancer := lb.Frontend{Protocol: lb.TCP, Addr: everyAddress[4].Addr}
	for name, f := range map[string]Flow{
		"plain":          {Frontend: lb.Frontend{Protocol: lb.TCP, Addr: front}},
		"node port":      {Frontend: lb.Frontend{Protocol: lb.TCP, Addr: netip.MustParseAddrPort("192.0.2.7:30080")}},
		"mapped address": {Frontend: lb.Frontend{Protocol: lb.TCP, Addr: netip.MustParseAddrPort("[::ffff:10.0.0.1]:80")}},
		"affinity":       {Frontend: lb.Frontend{Protocol: lb.TCP, Addr: front}, Client: client},
		"local":          {Frontend: lb.Frontend{Protocol: lb.TCP, Addr: everyAddress[1].Addr}},
		"from outside":   {Frontend: externalIP, Client: remote},
		"from a pod":     {Frontend: externalIP, Client: podHere},
		"allowed":        {Frontend: loadBalancer, Client: client},
		"allowed node":   {Frontend: loadBalancer, Client: loadBalancer.Addr.Addr()},
		"not allowed":    {Frontend: loadBalancer, Client: remote},
		"no service":     {Frontend: lb.Frontend{Protocol: lb.UDP, Addr: front}},
	} {
		t.Run(name, func(t *testing.T) {
			var b Balancer
			s := s
			if f.Client.IsValid() {
				s.AffinityTimeout = 1e9
			}
			b.Update(mustTable(t, []lb.Service{s}))
			failed := errors.New("failed")
			if n := testing.AllocsPerRun(1000, func() {
				var tried Tried
				f := f
				f.Tried = &tried
				for range 3 {
					c, _ := b.Pick(f)
					c.Live()
					tried.Add(c)
					c.Done(failed)
				}
			}); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}
