package agent

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/sluice-lb/sluice/internal/lists"
	"github.com/sluice-lb/sluice/lb"
)

// manyPorts returns the ports of a Service, ordered by ID, with an endpoint of the last byte.
func manyPorts(name string, ip byte, ports int, endpoint byte) (out []*lb.Service) {
	for p := 1; p <= ports; p++ {
		s := service(lb.TCP, name, ip, endpoint)
		s.Port = fmt.Sprintf("p%05d", p)
		s.Addresses[0].Addr = netip.AddrPortFrom(s.Addresses[0].Addr.Addr(), uint16(p))
		out = append(out, s)
	}
	return out
}

// TestTurns: whatever is wanted after what, a turn changes no more than it may, each Service that changes gets its
// part of it, one that is small or new gets all, and in the end what is wanted is there.
func TestTurns(t *testing.T) {
	rng := seeded(t)
	some := func() (out []*lb.Service) {
		for _, name := range []string{"a", "b", "c", "d"} {
			switch rng.IntN(4) {
			case 0:
				out = append(out, manyPorts(name, 1, 1+rng.IntN(3*turnPorts), byte(rng.IntN(200)))...)
			case 1:
				out = append(out, manyPorts(name, 1, 1, byte(rng.IntN(200)))...)
			}
		}
		return out
	}
	changed := func(was, is []*lb.Service) (total int, of map[lb.Name]int) {
		of = make(map[lb.Name]int)
		merge(was, is, func([]*lb.Service) {}, func(a, b *lb.Service) {
			if a != b {
				total++
				of[nameOf(a, b)]++
			}
		})
		return total, of
	}
	var turns turns
	have := turns.take(some(), turnPorts)
	if turns.more {
		t.Fatal("the first turn leaves something")
	}
	for range 30 {
		want := some()
		for n := 0; ; n++ {
			if n > 40 {
				t.Fatal("there is no end to it")
			}
			was := have
			have = turns.take(want, turnPorts)
			if !slices.IsSortedFunc(have, func(a, b *lb.Service) int { return a.ID.Compare(b.ID) }) {
				t.Fatal("a turn has lost the order")
			}
			total, of := changed(was, have)
			if total > turnPorts {
				t.Fatalf("a turn changes %d ports", total)
			}
			_, left := changed(have, want)
			for name, missing := range left {
				if of[name] < min(missing, turnPorts/len(of)) {
					t.Fatalf("%v has a turn of %d while %d are missing, among %v", name, of[name], missing, of)
				}
			}
			if !turns.more {
				if len(left) > 0 {
					t.Fatalf("the last turn leaves %v", left)
				}
				break
			}
			if len(left) == 0 {
				t.Fatal("there is to be another turn, for nothing")
			}
		}
	}
}

// TestTurnsOfOneThatChangesAllTheTime: it gets to what it was to become, every time, and meanwhile others are not
// held up by it.
func TestTurnsOfOneThatChangesAllTheTime(t *testing.T) {
	const turnsOfIt = 4
	var turns turns
	turns.take(nil, turnPorts)
	reached := 0
	for n := range byte(5 * turnsOfIt) {
		want := slices.Concat(manyPorts("big", 1, turnsOfIt*(turnPorts-1), n), manyPorts("small", 2, 1, n))
		have := turns.take(want, turnPorts)
		if !turns.more {
			t.Fatal("what changes again is there already")
		}
		if have[len(have)-1] != want[len(want)-1] {
			t.Errorf("turn %d: the small one waits", n)
		}
		if len(turns.behind) == 0 {
			reached++
			first, last := have[0].Backends[0], have[len(have)-2].Backends[0]
			if first != last {
				t.Errorf("turn %d: the big one has endpoints %v and %v", n, first, last)
			}
		}
	}
	if reached < 4 {
		t.Errorf("the big one was as it was to be %d times, want 4", reached)
	}
}

// TestOthersComeBetween: while a large Service comes and goes, what others change is in force before, the agent is
// healthy, and each turn keeps the order of its steps. The pace does not hold up what is to follow. Large knows of it
// from the first turn to the last.
func TestOthersComeBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, k := newAgent(t)
		a.WriteEvery, a.VerifyEvery = time.Hour, 100*time.Hour
		large, began := 0, 0
		a.Large = func() func() {
			large, began = large+1, began+1
			return func() { large-- }
		}
		web := service(lb.TCP, "web", 1, 1)
		mustApply(t, a, web)
		k.calls = nil
		const turn = 50 * time.Millisecond
		k.moved = func() { time.Sleep(turn) } // of synctest
		stop := running(t, a)
		defer stop()
		submit := func(services ...*lb.Service) {
			a.Submit(Desired{Services: lists.Of(services), Changes: Changes{Services: 1}})
		}
		const turns = 5
		big := manyPorts("big", 9, turns*turnPorts, 1)
		late := service(lb.UDP, "late", 2, 1)
		frontend := lb.Frontend{Protocol: lb.UDP, Addr: late.Addresses[0].Addr}
		for _, step := range []struct {
			name          string
			before, after []*lb.Service
			late          bool
			calls         string
		}{
			{"comes", append(slices.Clone(big), web), slices.Concat(big, []*lb.Service{late, web}), true,
				"table steer"},
			{"goes", []*lb.Service{late, web}, []*lb.Service{web}, false, "table steer table"},
		} {
			time.Sleep(2 * time.Hour) // of synctest: after quiet
			had := len(k.steered)
			submit(step.before...)
			time.Sleep(turn / 2) // of synctest
			submit(step.after...)
			time.Sleep(2 * turn) // of synctest
			if _, served := k.entries[frontend]; served != step.late {
				t.Errorf("%s: the other's change is not in force after two turns", step.name)
			}
			if n := len(k.steered) - had; max(n, -n) > 3*turnPorts {
				t.Errorf("%s: %d ports are changed in two turns", step.name, n)
			}
			if large != 1 {
				t.Errorf("%s: Large is called for %d changes, want 1", step.name, large)
			}
			if s := a.Status(); s.QueuedSince.IsZero() || s.ServicesPending == 0 || !s.Healthy(time.Now()) {
				t.Errorf("%s: under way: %+v", step.name, s)
			}
			time.Sleep(turns * turn) // of synctest
			synctest.Wait()
			if large != 0 {
				t.Errorf("%s: Large is not told of the end", step.name)
			}
			if s := a.Status(); !s.QueuedSince.IsZero() || s.ServicesPending > 0 || s.Deferred > 0 {
				t.Errorf("%s: at the end: %+v", step.name, s)
			}
			if n, want := len(k.steered), len(step.after); n != want {
				t.Errorf("%s: %d are steered in the end, want %d", step.name, n, want)
			}
			if calls := k.order(); strings.Count(calls, step.calls) < turns {
				t.Errorf("%s: %s, want %d times %s", step.name, calls, turns, step.calls)
			}
		}
		if began != 2 {
			t.Errorf("Large is called %d times for two changes", began)
		}
	})
}

// TestRooms: what a turn has, and what it led to, stays as it is when the next one makes a slice of what is wanted, and
// no Service stays in memory that is in neither.
func TestRooms(t *testing.T) {
	rng, turns := rand.New(rand.NewPCG(7, 8)), new(turns)
	var all []*lb.Service
	for i := range 3 * turnPorts {
		all = append(all, &lb.Service{ID: lb.ID{Namespace: "default", Name: fmt.Sprintf("s-%05d", i/4), Port: strconv.Itoa(i % 4)}})
	}
	divided, reused := 0, 0
	for range 300 {
		n := []int{0, 10, turnPorts / 2, len(all)}[rng.IntN(4)]
		from := rng.IntN(len(all) - n + 1)
		wanted, have, goal, rooms := all[from:from+n], slices.Clone(turns.have), slices.Clone(turns.goal), turns.rooms
		flat := turns.flat(lists.Of(wanted))
		if !slices.Equal(turns.have, have) || !slices.Equal(turns.goal, goal) || !slices.Equal(flat, wanted) {
			t.Fatal("another slice has the memory of one that is still used")
		}
		for _, room := range rooms {
			if cap(room) > 0 && unsafe.SliceData(room) == unsafe.SliceData(flat) {
				reused++
			}
		}
		turns.take(flat, turnPorts)
		if turns.more {
			divided++
		}
		for _, room := range turns.rooms {
			if turns.has(room) {
				continue
			}
			if room = room[:cap(room)]; slices.ContainsFunc(room, func(s *lb.Service) bool { return s != nil }) {
				t.Fatal("what no turn has is kept in memory")
			}
		}
	}
	if divided < 10 || reused < 100 {
		t.Errorf("%d changes took several turns, and %d slices were in memory of earlier ones: this tests too little", divided, reused)
	}
}
