package balancer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/lb"
)

// everyScheduler is one of each kind.
var everyScheduler = append(everyAlgorithm(), "sh,sh-port", "mh,mh-port")

// everyAlgorithm returns the names of all.
func everyAlgorithm() (names []string) {
	for a := lb.RoundRobin; a <= lb.Maglev; a++ {
		names = append(names, a.String())
	}
	return names
}

// by returns a service with an algorithm, of backends with these weights; those of 0 are in maintenance.
func by(scheduler string, weights ...int) lb.Service {
	s := echo(numbers(len(weights))...)
	s.Policies = &lb.Policies{Scheduler: scheduler}
	for i, w := range weights {
		s.Backends[i].Weight, s.Backends[i].Maintenance = uint16(w), w == 0
	}
	return s
}

func ones(n int) []int { return slices.Repeat([]int{1}, n) }

// from returns a Flow of one of many clients.
func from(i int) Flow {
	return Flow{Client: netip.AddrFrom4([4]byte{192, byte(i >> 16), byte(i >> 8), byte(i)}), ClientPort: uint16(i)}
}

// What the program has as its default counts for services that request nothing.
func TestDefaultScheduler(t *testing.T) {
	b := &Balancer{Defaults: lb.Policies{Scheduler: "sh"}}
	own := by("rr", 1, 1)
	own.Name, own.Addresses = "own", []lb.Address{{Addr: netip.MustParseAddrPort("10.0.0.2:80")}}
	b.Update(mustTable(t, []lb.Service{by("", 1, 1), own}))
	if one, two := mustPick(t, b, from(1)), mustPick(t, b, from(1)); one != two {
		t.Error("two connections of one client go to different backends")
	}
	at := from(1)
	at.Frontend = lb.Frontend{Protocol: lb.TCP, Addr: own.Addresses[0].Addr}
	if one, two := mustPick(t, b, at), mustPick(t, b, at); one == two {
		t.Error("two turns go to the same backend")
	}
}

// 70/30/0 is exact over any 100, and so is every round of other weights; no backend waits for longer than for two of
// its turns, or has two more than are due.
func TestTurnsByWeight(t *testing.T) {
	b := balancing(t, by("rr", 70, 30, 0))
	var last []netip.AddrPort
	for range 1000 {
		last = append(last, mustPick(t, b, Flow{}).Backend())
		if len(last) < 100 {
			continue
		}
		seen := map[netip.AddrPort]int{}
		for _, a := range last[len(last)-100:] {
			seen[a]++
		}
		if seen[address(0)] != 70 || seen[address(1)] != 30 {
			t.Fatalf("of 100 in a row: %v", seen)
		}
	}
	rng := rand.New(rand.NewPCG(19, 3))
	for range 300 {
		weights := make([]uint32, 1+rng.IntN(40))
		sum := 0
		for i := range weights {
			weights[i] = 1 + rng.Uint32N(10)
			sum += int(weights[i])
		}
		round := turns(weights, mostTurns(len(weights)))
		had := make([]int, len(weights))
		for at, i := range slices.Concat(round, round) {
			had[i]++
			for k, w := range weights {
				due := float64(at+1) * float64(w) / float64(sum)
				if off := float64(had[k]) - due; off < -2 || off > 2 {
					t.Fatalf("weights %v, round %v: after %d turns %d has had %d of them, want %.1f", weights, round, at+1, k, had[k], due)
				}
			}
		}
		for i, w := range weights {
			if had[i]*sum != 2*len(round)*int(w) {
				t.Fatalf("weights %v: %d of %d turns are of %d", weights, had[i]/2, len(round), i)
			}
		}
	}
}

// Weights that would make a round too long are rounded.
func TestRoundIsBounded(t *testing.T) {
	for _, weights := range [][]uint32{{65535, 1}, {65535, 65534, 65533}, slices.Repeat([]uint32{65521, 65519, 1}, 333)} {
		round := turns(weights, mostTurns(len(weights)))
		sum, had := 0.0, make([]int, len(weights))
		for _, w := range weights {
			sum += float64(w)
		}
		for _, i := range round {
			had[i]++
		}
		for i, w := range weights {
			if want := float64(w) / sum * float64(len(round)); had[i] == 0 || float64(had[i]) > want+1 || float64(had[i]) < want-1 {
				t.Errorf("%d has %d of %d turns, want %.1f", i, had[i], len(round), want)
			}
		}
		if most := max(turnsAll, turnsEach*len(weights)) + len(weights); len(round) > most {
			t.Errorf("%d turns", len(round))
		}
	}
}

// What has all weights in maintenance is refused, as is a service without backends; what is there may stay.
func TestMaintenance(t *testing.T) {
	b := balancing(t, sticky(by("rr", 1, 1), 1e9))
	c := mustPick(t, b, from(1))
	weights := []int{1, 1}
	weights[c.Backend().Addr().As4()[3]] = 0
	b.Update(mustTable(t, []lb.Service{sticky(by("rr", weights...), 1e9)}))
	if again := mustPick(t, b, from(1)); again == c || !c.Live() {
		t.Errorf("a new connection goes to %s, which is in maintenance; live %t", c.Backend(), c.Live())
	}
	none := by("rr", 0, 0)
	b.Update(mustTable(t, []lb.Service{none}))
	if _, err := b.Pick(Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: front}}); err != ErrNoBackend || !c.Live() {
		t.Errorf("got %v, live %t; want ErrNoBackend", err, c.Live())
	}
	if in, out := none.Verdicts(none.Addresses[0]); in != lb.Refuse || out != lb.Refuse || none.Eligible() != nil {
		t.Errorf("verdicts %s, %s; eligible %v", in, out, none.Eligible())
	}
}

// Every algorithm gives all untried backends before any again, and works when all were tried.
func TestEveryAlgorithmPassesOverTried(t *testing.T) {
	for _, scheduler := range everyScheduler {
		for _, weights := range [][]int{ones(6), {1, 2, 3, 4, 5, 6}, {7}} {
			b := balancing(t, by(scheduler, weights...))
			for i := range 50 {
				var tried Tried
				f := from(i)
				f.Tried = &tried
				for range weights {
					if !tried.Add(mustPick(t, b, f)) {
						t.Errorf("%s, weights %v: the same backend twice", scheduler, weights)
					}
				}
				if mustPick(t, b, f) == (Choice{}) {
					t.Errorf("%s, weights %v: no backend after all were tried", scheduler, weights)
				}
			}
		}
	}
}

// least connections, with changes of backends, weights and algorithm meanwhile, against the rule itself.
func TestLeastConnectionsModel(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 19))
		b := &Balancer{Seed: seed}
		weights, open := map[netip.AddrPort]int{}, map[netip.AddrPort]int{}
		var choices []Choice
		leastConnections := true
		change := func() {
			leastConnections = rng.IntN(4) > 0
			all := ones(1 + rng.IntN(12))
			weigh := rng.IntN(2) == 0
			clear(weights)
			for i := range all {
				if weigh {
					all[i] = 1 + rng.IntN(5)
				}
				weights[address(i)] = all[i]
			}
			b.Update(mustTable(t, []lb.Service{by([]string{"rr", "lc"}[btoi(leastConnections)], all...)}))
		}
		change()
		for step := range 300 {
			switch op := rng.IntN(20); {
			case op == 0:
				change()
			case op < 9 && len(choices) > 0:
				i := rng.IntN(len(choices))
				open[choices[i].Backend()]--
				choices[i].Done(nil)
				choices = slices.Delete(choices, i, i+1)
			default:
				c := mustPick(t, b, Flow{})
				at := c.Backend()
				for a, w := range weights {
					if leastConnections && float64(open[a])/float64(w) < float64(open[at])/float64(weights[at])*.9999 {
						t.Fatalf("seed %d, step %d: picked %s with %d in flight, weight %d, though %s has %d, weight %d",
							seed, step, at, open[at], weights[at], a, open[a], w)
					}
				}
				open[at]++
				choices = append(choices, c)
			}
		}
		for _, c := range choices {
			c.Done(nil)
		}
		if n := b.Counters().All()[0].InFlight; n != 0 {
			t.Errorf("seed %d: %d are in flight after all", seed, n)
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Backends with as many connections take turns, those with weights by weight.
func TestLeastConnectionsTakesTurns(t *testing.T) {
	for _, weights := range [][]int{ones(7), {5, 2}} {
		b := balancing(t, by("lc", weights...))
		seen := map[netip.AddrPort]int{}
		for range 70 {
			c := mustPick(t, b, Flow{})
			seen[c.Backend()]++
			c.Done(nil)
		}
		for i, w := range weights {
			if got := seen[address(i)]; got != w*10 {
				t.Errorf("weights %v: backend %d was picked %d times", weights, i, got)
			}
		}
	}
}

// simulate has one of five backends take 20 times as long as the others, to connect and to serve, and returns which
// part of the connections it gets. now is the only clock.
func simulate(t *testing.T, scheduler string) float64 {
	b := &Balancer{Seed: 19}
	b.Update(mustTable(t, []lb.Service{by(scheduler, ones(5)...)}))
	type event struct {
		at       int64
		choice   Choice
		accepted bool
	}
	var events []event
	slow, all := 0, 0
	takes := func(c Choice) int64 {
		if c.Backend() == address(0) {
			return 20e6
		}
		return 1e6
	}
	for now := int64(0); now < 20*second; now += 1e6 {
		events = slices.DeleteFunc(events, func(e event) bool {
			if e.at <= now && !e.accepted {
				e.choice.Took(takes(e.choice), now)
			}
			if e.at+10*takes(e.choice) <= now {
				e.choice.Done(nil)
				return true
			}
			return false
		})
		for i := range events {
			events[i].accepted = events[i].accepted || events[i].at <= now
		}
		c := mustPick(t, b, Flow{Now: now})
		events = append(events, event{at: now + takes(c), choice: c})
		if all++; c.Backend() == address(0) {
			slow++
		}
	}
	return float64(slow) / float64(all)
}

// Who is slow gets less: a fifth in turns, less by what is in flight, and nearly nothing by how long it takes.
func TestSlowBackendGetsLess(t *testing.T) {
	for scheduler, most := range map[string]float64{"rr": .2, "random": .25, "lc": .05, "p2c": .07, "ewma": .01} {
		if got := simulate(t, scheduler); got > most {
			t.Errorf("%s: %.3f of the connections go to the slow one, want at most %.2f", scheduler, got, most)
		}
	}
}

// The mean jumps up, comes down by halves, and nothing that was measured long ago counts.
func TestPeakEWMA(t *testing.T) {
	var k backend
	near := func(when string, now, want int64) {
		t.Helper()
		if got := k.answersIn(now); got < .92*float64(want) || got > 1.08*float64(want) {
			t.Errorf("%s: %.0f ns, want %d", when, got, want)
		}
	}
	near("nothing known", 5, 0)
	k.observe(1e6, 0)
	near("first", 0, 1e6)
	k.observe(50e6, 1e6)
	near("peak", 1e6, 50e6)
	k.observe(1e6, 2e6)
	near("one fast one later", 2e6, 50e6)
	near("after a half-life", 2e6+halfLife, 25e6)
	for at := int64(0); at < 10*second; at += 1e5 { // ten for each tick
		k.observe(1e6, 2e6+at)
	}
	near("after 10 s of fast ones", 2e6+10*second, 19e6)
	if got := k.answersIn(310 * second); got > 1 {
		t.Errorf("after 5 min: %g ns are left", got)
	}
	k.observe(3e6, 1e6*second)
	near("after 12 days", 1e6*second, 3e6)
	if k.observe(0, 0); k.answersIn(0) <= 0 {
		t.Error("an answer at once is as if nothing was known")
	}
}

// TestEWMAIsFair: backends that take equally long, but for noise, get equal shares, however many clients ask at a time.
func TestEWMAIsFair(t *testing.T) {
	for _, backends := range []int{2, 3} {
		for _, clients := range []int{1, 8} {
			b := balancing(t, by("ewma", ones(backends)...))
			seen, chance, now := map[netip.AddrPort]int{}, rand.New(rand.NewPCG(1, 2)), int64(0)
			for range 480 / clients {
				var open []Choice
				for range clients {
					c := mustPick(t, b, Flow{Now: now})
					seen[c.Backend()]++
					open = append(open, c)
				}
				for _, c := range open {
					now += 1e6
					c.Took(1e5+chance.Int64N(8e6), now)
					c.Done(nil)
				}
			}
			for addr, n := range seen {
				if want := 480 / backends; n < want*4/5 || n > want*6/5 {
					t.Errorf("%d clients: %s of %d has %d of 480 connections", clients, addr, backends, n)
				}
			}
			if len(seen) != backends {
				t.Errorf("%d clients: %d of %d backends have connections", clients, len(seen), backends)
			}
		}
	}
}

// A backend that does not accept is the last to be asked again.
func TestFailedConnectCosts(t *testing.T) {
	b := balancing(t, by("ewma", 1, 1))
	for range 50 {
		if c := mustPick(t, b, Flow{}); c.Backend() == address(0) {
			c.Failed(errRefused, 0)
		} else {
			c.Took(1e6, 0)
			c.Done(nil)
		}
	}
	var refusing uint64
	for _, k := range b.Counters().All()[0].Backends {
		if k.Addr == address(0) {
			refusing = k.Picks
		}
	}
	if refusing > 3 {
		t.Errorf("%d of 50 went to the one that refuses", refusing)
	}
}

// Nodes with other seeds and other orders of backends send a client to the same one.
func TestHashesAgreeAmongNodes(t *testing.T) {
	testbed.Sequential(t)
	for _, scheduler := range []string{"sh", "maglev", "sh,sh-port", "mh,mh-port"} {
		for _, weights := range [][]int{ones(10), {1, 2, 3, 4, 0, 100}} {
			one, other := &Balancer{Seed: 1}, &Balancer{Seed: 2}
			s := by(scheduler, weights...)
			one.Update(mustTable(t, []lb.Service{s}))
			slices.Reverse(s.Backends)
			other.Update(mustTable(t, []lb.Service{s}))
			seen := map[netip.AddrPort]int{}
			for i := range 10000 {
				a, b := mustPick(t, one, from(i)).Backend(), mustPick(t, other, from(i)).Backend()
				if a != b {
					t.Fatalf("%s: client %d goes to %s and %s", scheduler, i, a, b)
				}
				seen[a]++
			}
			sum := 0
			for _, w := range weights {
				sum += w
			}
			for i, w := range weights {
				want := float64(10000*w) / float64(sum)
				if got := float64(seen[address(i)]); got < want*.9-30 || got > want*1.1+30 {
					t.Errorf("%s, weights %v: %.0f of 10,000 clients go to %d, want some %.0f", scheduler, weights, got, i, want)
				}
			}
		}
	}
}

func TestPortCountsIfRequested(t *testing.T) {
	for scheduler, counts := range map[string]bool{"sh": false, "maglev": false, "sh,sh-port": true, "mh,mh-port": true} {
		b := balancing(t, by(scheduler, ones(10)...))
		seen := map[Choice]bool{}
		for port := range uint16(100) {
			seen[mustPick(t, b, Flow{Client: client, ClientPort: port})] = true
		}
		if got := len(seen) > 1; got != counts {
			t.Errorf("%s: %d backends for one address", scheduler, len(seen))
		}
	}
}

// When one of 100 backends goes, or comes back, its clients move, and of the others at most one in 100.
func TestMaglevMovesFew(t *testing.T) {
	testbed.Native(t)
	const clients = 100000
	b := balancing(t, by("maglev", ones(100)...))
	at := make([]netip.AddrPort, clients)
	for i := range at {
		at[i] = mustPick(t, b, from(i)).Backend()
	}
	for gone := range 10 {
		s := by("maglev", ones(100)...)
		s.Backends = slices.Delete(s.Backends, gone*10, gone*10+1)
		b.Update(mustTable(t, []lb.Service{s}))
		moved, had := 0, 0
		for i, was := range at {
			switch is := mustPick(t, b, from(i)).Backend(); {
			case was == address(gone*10):
				had++
			case is != was:
				moved++
			}
		}
		if moved > clients/100 || had < clients/100*8/10 || had > clients/100*12/10 {
			t.Errorf("without backend %d: %d of %d clients moved besides its %d", gone*10, moved, clients, had)
		}
	}
}

// While connections come and go the algorithm, the weights and the backends change. Nothing is lost, and every Pick
// finds a backend of one of the tables.
func TestLiveChanges(t *testing.T) {
	b := &Balancer{Outlier: lb.DefaultOutlier}
	table := func(i int) *lb.Table {
		weights := ones(2 + i%7)
		for k := range weights {
			if i%3 > 0 {
				weights[k] = 1 + (i+k)%4
			}
		}
		s := by(everyScheduler[i%len(everyScheduler)], weights...)
		if i%5 == 0 {
			s.AffinityTimeout = 1e9
		}
		if i%4 < 2 {
			s.Policies.SlowStart = 1e9
		}
		return mustTable(t, []lb.Service{s})
	}
	b.Update(table(0))
	var wg sync.WaitGroup
	var stop atomic.Bool
	var picks atomic.Uint64
	for g := range 4 {
		wg.Go(func() {
			var open []Choice
			for i := g; !stop.Load(); i += 4 {
				f := from(i % 1000)
				f.Now = int64(i) * 1e5
				c := mustPick(t, b, f)
				picks.Add(1)
				if i%97 == 0 {
					c.Failed(errRefused, f.Now)
					continue
				}
				c.Took(int64(i%1000)*1e3, f.Now)
				c.Answered()
				if open = append(open, c); len(open) > 20 {
					open[i%20].Done(nil)
					open = slices.Delete(open, i%20, i%20+1)
				}
			}
			for _, c := range open {
				c.Done(nil)
			}
		})
	}
	for i := range 300 {
		b.Update(table(i))
	}
	stop.Store(true)
	wg.Wait()
	// A Pick that was busy with the table before may be missing at a backend that has left (state.dropDrained).
	if s := b.Counters().All()[0]; s.InFlight != 0 || s.Picks > picks.Load() || s.Picks < picks.Load()-300 {
		t.Errorf("%d in flight, %d picks; want 0 and %d", s.InFlight, s.Picks, picks.Load())
	}
}

func TestAlgorithmsDoNotAllocate(t *testing.T) {
	for _, scheduler := range everyScheduler {
		for _, weights := range [][]int{ones(20), {1, 2, 3, 4}} {
			b := balancing(t, by(scheduler, weights...))
			if n := testing.AllocsPerRun(1000, func() {
				var tried Tried
				f := from(7)
				f.Tried = &tried
				for range 3 {
					c := mustPick(t, b, f)
					c.Took(1e6, 1e6)
					tried.Add(c)
					c.Done(nil)
				}
			}); n != 0 {
				t.Errorf("%s: %v allocations", scheduler, n)
			}
		}
	}
}

// What is explained is what the next Pick does.
func TestExplainIsTrue(t *testing.T) {
	for _, scheduler := range everyScheduler {
		b := balancing(t, by(scheduler, 3, 1, 2))
		for i := range 50 {
			f := from(i)
			f.Frontend = lb.Frontend{Protocol: lb.TCP, Addr: front}
			text := b.Explain(f)
			c := mustPick(t, b, f)
			if want := fmt.Sprintf("goes to %s: ", c.Backend()); !strings.Contains(text, want) {
				t.Fatalf("%s: %q is not in\n%s", scheduler, want, text)
			}
			if i%3 > 0 {
				c.Done(nil)
			}
		}
	}
}

// TestFloors: whatever connections come and go, and however backends change, a pick finds the fewest, and the first of
// those from its turn on.
func TestFloors(t *testing.T) {
	testbed.Native(t)
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := &Balancer{Defaults: lb.Policies{Scheduler: "lc"}}
		n := 1 + r.IntN(30)
		weights := seed%2 == 1
		weight := make(map[netip.AddrPort]uint64)
		update := func() {
			s := echo(numbers(n)...)
			for i := range s.Backends {
				k := &s.Backends[i]
				if weights {
					k.Weight = 1 << r.IntN(4)
				}
				weight[k.Addr] = uint64(weightOf(k))
			}
			b.Update(mustTable(t, []lb.Service{s}))
		}
		update()
		var open []Choice
		for step := range 400 {
			switch op := r.IntN(20); {
			case op == 0:
				n = 1 + r.IntN(30)
				update()
			case op < 11 && len(open) > 0:
				i := r.IntN(len(open))
				open[i].Done(nil)
				open[i] = open[len(open)-1]
				open = open[:len(open)-1]
			default:
				s := b.load().service(0)
				ring := s.rings[lb.ClusterSet]
				start := s.terms(lb.ClusterSet).turn(ring, s.state.positions[lb.ClusterSet].first.Load())
				load := func(k *backend) uint64 { return k.inFlight() * 8 / weight[k.addr] }
				want := ring[start]
				for i := range ring {
					if k := ring[(start+i)%len(ring)]; load(k) < load(want) {
						want = k
					}
				}
				c := mustPick(t, b, Flow{})
				if open = append(open, c); c.backend != want {
					t.Fatalf("seed %d, step %d: picked one with %d, want the one with %d", seed, step,
						c.backend.inFlight()-1, want.inFlight())
				}
			}
		}
	}
}

// TestFloorsAtOnce: after many goroutines have made and ended connections at the same time, picks are exact again at
// once.
func TestFloorsAtOnce(t *testing.T) {
	b := &Balancer{Defaults: lb.Policies{Scheduler: "lc"}}
	b.Update(mustTable(t, []lb.Service{echo(numbers(20)...)}))
	for round := range 50 {
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				r := rand.New(rand.NewPCG(uint64(round), uint64(i)))
				var open []Choice
				for range 2000 {
					if len(open) > 0 && r.IntN(2) == 0 {
						at := r.IntN(len(open))
						open[at].Done(nil)
						open = slices.Delete(open, at, at+1)
						continue
					}
					c, err := b.Pick(Flow{Frontend: lb.Frontend{Protocol: lb.TCP, Addr: front}})
					if err != nil {
						t.Error(err)
						return
					}
					open = append(open, c)
				}
				if round%2 == 0 { // else they stay
					for _, c := range open {
						c.Done(nil)
					}
				}
			})
		}
		all.Wait()
		s := b.load().service(0)
		least := uint64(math.MaxUint64)
		for _, k := range s.backends {
			least = min(least, k.inFlight())
		}
		if floor := s.method.sets[lb.ClusterSet].floor.Load(); floor > least {
			t.Fatalf("round %d: the floor is %d, and a backend has %d", round, floor, least)
		}
		if c := mustPick(t, b, Flow{}); c.backend.inFlight() != least+1 {
			t.Fatalf("round %d: picked one with %d, the fewest are %d", round, c.backend.inFlight()-1, least)
		}
	}
}
