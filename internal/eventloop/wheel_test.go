package eventloop

import (
	"math/rand/v2"
	"testing"
)

type expirer func(*Timer)

func (f expirer) Expire(t *Timer) { f(t) }

// TestWheelAgainstModel runs random starts, stops and steps of time beside a map
// of deadlines: each timer fires once, never early, and not after the first step
// that passes its deadline by a tick.
func TestWheelAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)

	var w wheel
	now := rnd.Int64N(1 << 40)
	w.init(now)
	timers := make([]Timer, 300)
	deadline := make(map[*Timer]int64)
	fired := 0
	owner := expirer(func(tm *Timer) {
		d, ok := deadline[tm]
		if !ok {
			t.Fatalf("a stopped timer fired")
		}
		if d > now {
			t.Fatalf("timer fired %d ns early", d-now)
		}
		delete(deadline, tm)
		fired++
	})
	for range 20_000 {
		tm := &timers[rnd.IntN(len(timers))]
		switch rnd.IntN(4) {
		case 0, 1:
			w.remove(tm)
			deadline[tm] = now + rnd.Int64N([]int64{20, 500, 4000, 20_000}[rnd.IntN(4)]*1_000_000)
			w.add(tm, owner, deadline[tm])
		case 2:
			w.remove(tm)
			delete(deadline, tm)
		case 3:
			now += rnd.Int64N([]int64{1, 10, 300, 10_000}[rnd.IntN(4)] * 1_000_000)
			w.fire(now)
			for _, d := range deadline {
				if d+Tick <= now {
					t.Fatalf("timer is %d ns late", now-d)
				}
			}
		}
		if w.count != len(deadline) {
			t.Fatalf("wheel holds %d timers, want %d", w.count, len(deadline))
		}
		checkNext(t, &w, deadline)
	}
	if fired < 1000 {
		t.Fatalf("only %d timers fired: the test tests nothing", fired)
	}
}

// checkNext: the wheel asks to be woken no later than the earliest deadline.
func checkNext(t *testing.T, w *wheel, deadline map[*Timer]int64) {
	t.Helper()
	next := w.next()
	if len(deadline) == 0 {
		if next != -1 {
			t.Fatalf("next = %d with no timer, want -1", next)
		}
		return
	}
	earliest := int64(-1)
	for _, d := range deadline {
		if earliest < 0 || d < earliest {
			earliest = d
		}
	}
	if latest := max(earliest+Tick, (w.last+1)*Tick); next < 0 || next > latest {
		t.Fatalf("next = %d, want at most %d", next, latest)
	}
}

func TestWheelChangesWhileFiring(t *testing.T) {
	var w wheel
	w.init(0)
	var a, b, c Timer
	count := map[*Timer]int{}
	var owner expirer
	owner = func(tm *Timer) {
		count[tm]++
		if tm == &a {
			w.remove(&b)              // due in the same slot: must not fire
			w.add(&c, owner, 2*Tick)  // in the slot being fired, and past: must fire later
			w.add(&a, owner, 50*Tick) // restarts itself
		}
	}
	w.add(&a, owner, 2*Tick)
	w.add(&b, owner, 2*Tick)
	w.fire(10 * Tick)
	if count[&a] != 1 || count[&b] != 0 || count[&c] != 0 {
		t.Fatalf("after the first round a, b, c fired %d, %d, %d times; want 1, 0, 0", count[&a], count[&b], count[&c])
	}
	w.fire(60 * Tick)
	if count[&a] != 2 || count[&c] != 1 || !a.Active() {
		t.Fatalf("after the second round a, c fired %d, %d times; want 2, 1", count[&a], count[&c])
	}
}

func TestFiringAllocatesNothing(t *testing.T) {
	var w wheel
	w.init(0)
	var timers [8]Timer
	fired, now := 0, int64(0)
	owner := expirer(func(*Timer) { fired++ })
	if n := testing.AllocsPerRun(100, func() {
		for i := range timers {
			w.add(&timers[i], owner, now+Tick)
		}
		now += 2 * Tick
		w.fire(now)
	}); n != 0 {
		t.Errorf("firing costs %v allocations, want 0", n)
	}
	if fired < 100*len(timers) {
		t.Errorf("%d timers fired, want at least %d", fired, 100*len(timers))
	}
}
