package affinity

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

func addr(i int) Key { return KeyOf(netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})) }

// model is a Table done in the dumbest way: a list, most recently used first.
type model struct {
	max     int
	list    []memory
	evicted uint64
}

type memory struct {
	client   Key
	backend  int
	lastUsed int64
}

func (m *model) remove(match func(memory) bool) int {
	before := len(m.list)
	m.list = slices.DeleteFunc(m.list, match)
	return before - len(m.list)
}

func (m *model) get(client Key, now, timeout int64) (int, bool) {
	i := slices.IndexFunc(m.list, func(e memory) bool { return e.client == client })
	if i < 0 {
		return 0, false
	}
	e := m.list[i]
	m.list = slices.Delete(m.list, i, i+1)
	if now-e.lastUsed >= timeout {
		return 0, false
	}
	e.lastUsed = now
	m.list = slices.Insert(m.list, 0, e)
	return e.backend, true
}

func (m *model) put(client Key, backend int, now int64) {
	known := m.remove(func(e memory) bool { return e.client == client })
	if known == 0 && len(m.list) == m.max {
		m.list = m.list[:m.max-1]
		m.evicted++
	}
	m.list = slices.Insert(m.list, 0, memory{client, backend, now})
}

func contents(t *Table[Key, int]) []memory {
	var all []memory
	t.Since(math.MinInt64, func(client Key, backend int, lastUsed int64) {
		all = append(all, memory{client, backend, lastUsed})
	})
	slices.Reverse(all)
	return all
}

func TestTableAgainstModel(t *testing.T) {
	testbed.Sequential(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 30 {
		limit := 1 + rng.IntN(20)
		table, m := Table[Key, int]{Max: limit}, model{max: limit}
		now := int64(0)
		timeout := int64(50)
		for step := range 2000 {
			now += rng.Int64N(5)
			client := addr(rng.IntN(30))
			backend := rng.IntN(5)
			switch op := rng.IntN(100); {
			case op < 45:
				got, ok := table.Get(client, now, timeout)
				want, wantOK := m.get(client, now, timeout)
				if got != want || ok != wantOK {
					t.Fatalf("step %d: Get(%s): got %d %t, want %d %t", step, client, got, ok, want, wantOK)
				}
			case op < 85:
				table.Put(client, backend, now)
				m.put(client, backend, now)
			case op < 90:
				table.PutAndSweep(client, backend, now, timeout)
				for range 2 {
					if last := len(m.list) - 1; last >= 0 && now-m.list[last].lastUsed >= timeout {
						m.list = m.list[:last]
					}
				}
				m.put(client, backend, now)
			case op < 94:
				table.DeleteFunc(func(b int) bool { return b == backend })
				m.remove(func(e memory) bool { return e.backend == backend })
			case op < 98:
				table.Sweep(now, timeout)
				m.remove(func(e memory) bool { return now-e.lastUsed >= timeout })
			case op < 99:
				timeout = 1 + rng.Int64N(100)
			default: // a long pause, after which all is expired
				now += 200
			}
			if got := contents(&table); !slices.Equal(got, m.list) {
				t.Fatalf("step %d: got %v, want %v", step, got, m.list)
			}
			if table.Len() != len(m.list) || table.Evicted() != m.evicted {
				t.Fatalf("step %d: got %d clients and %d evicted, want %d and %d",
					step, table.Len(), table.Evicted(), len(m.list), m.evicted)
			}
			if len(table.slots) > 1+limit {
				t.Fatalf("step %d: %d slots for %d clients", step, len(table.slots), limit)
			}
		}
	}
}

// TestDeleteInPieces: whatever others do between the pieces of one DeleteFunc, no client is
// missed that matched all the time, and none is lost that did not.
func TestDeleteInPieces(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const clients, timeout = 6 * piece, 100
	for round := range 10 {
		var table Table[Key, int]
		m := model{max: most}
		now := int64(0)
		for i := range clients {
			table.Put(addr(i), rng.IntN(1+round%3), now)
		}
		m.list = contents(&table)
		match := func(backend int) bool { return backend == 0 }
		late := make(map[Key]bool) // put since the beginning, and may stay or not
		pieces := 0
		for from := int32(1); from != none; pieces++ {
			calls := 0
			if from = table.deletePiece(from, func(b int) bool { calls++; return match(b) }); calls > piece {
				t.Fatalf("looked at %d at once", calls)
			}
			for range rng.IntN(100) {
				client := addr(rng.IntN(clients + piece))
				switch op := rng.IntN(100); {
				case op < 40:
					table.Get(client, now, timeout)
					m.get(client, now, timeout)
				case op < 99:
					backend := rng.IntN(3)
					table.Put(client, backend, now)
					m.put(client, backend, now)
					late[client] = true
				default:
					now += rng.Int64N(timeout / 2)
					table.Sweep(now, timeout)
					m.remove(func(e memory) bool { return now-e.lastUsed >= timeout })
				}
			}
		}
		if pieces < 3 {
			t.Fatalf("%d pieces", pieces)
		}
		left := slices.DeleteFunc(contents(&table), func(e memory) bool { return match(e.backend) && late[e.client] })
		m.remove(func(e memory) bool { return match(e.backend) })
		if !slices.Equal(left, m.list) {
			t.Fatalf("round %d: %d clients are left, want %d", round, len(left), len(m.list))
		}
	}
}

// TestOthersGetIn: who asks while many clients are removed does not wait until all are.
// Nobody says when somebody waits for a lock, so that it is tried until one gets in.
func TestOthersGetIn(t *testing.T) {
	for name, remove := range map[string]func(*Table[Key, int]){
		"DeleteFunc": func(table *Table[Key, int]) { table.DeleteFunc(func(int) bool { return true }) },
		"Sweep":      func(table *Table[Key, int]) { table.Sweep(10, 10) },
	} {
		t.Run(name, func(t *testing.T) {
			for range 100 {
				var table Table[Key, int]
				for i := range most {
					table.Put(addr(i), i, 0)
				}
				asking, between := make(chan struct{}), false
				var asked sync.WaitGroup
				asked.Go(func() {
					close(asking)
					for n := table.Len(); n > 0; n = table.Len() {
						between = between || n < most
					}
				})
				<-asking
				if remove(&table); table.Len() != 0 {
					t.Fatalf("%d are left", table.Len())
				}
				if asked.Wait(); between {
					return
				}
			}
			t.Error("nobody got in before all were removed")
		})
	}
}

func TestTimeoutSlides(t *testing.T) {
	var table Table[Key, string]
	a := addr(1)
	table.Put(a, "x", 0)
	for _, step := range []struct {
		now, timeout int64
		ok           bool
	}{
		{9, 10, true},
		{18, 10, true}, // 9 after the last use
		{28, 11, true}, // a longer timeout counts at once
		{37, 9, false}, // so does a shorter one; exactly the timeout is too long
		{37, 1000, false},
	} {
		if _, ok := table.Get(a, step.now, step.timeout); ok != step.ok {
			t.Errorf("at %d with timeout %d: got %t", step.now, step.timeout, ok)
		}
	}
	if table.Len() != 0 {
		t.Error("Get kept what had expired")
	}
}

func TestPeekChangesNothing(t *testing.T) {
	var table Table[Key, string]
	table.Put(addr(1), "x", 5)
	table.Put(addr(2), "y", 6)
	if b, used, ok := table.Peek(addr(1)); b != "x" || used != 5 || !ok {
		t.Errorf("got %q %d %t", b, used, ok)
	}
	if _, _, ok := table.Peek(addr(3)); ok {
		t.Error("knows a stranger")
	}
	if table.Sweep(15, 10); table.Len() != 1 {
		t.Error("Peek refreshed a client")
	}
}

func TestClientIdentity(t *testing.T) {
	var table Table[Key, string]
	table.Put(KeyOf(netip.MustParseAddr("192.0.2.1")), "x", 0)
	table.Put(KeyOf(netip.MustParseAddr("fe80::1%eth0")), "y", 0)
	for client, want := range map[string]string{
		"::ffff:192.0.2.1": "x",
		"fe80::1%eth1":     "y",
		"::192.0.2.1":      "",
	} {
		if got, _ := table.Get(KeyOf(netip.MustParseAddr(client)), 0, 1); got != want {
			t.Errorf("%s: got %q, want %q", client, got, want)
		}
	}
}

// Loops with clocks of their own may be a little apart.
func TestLaggingClock(t *testing.T) {
	var table Table[Key, string]
	table.Put(addr(1), "x", 10)
	table.Put(addr(2), "y", 8)
	if _, ok := table.Get(addr(1), 9, 10); !ok {
		t.Error("lost a client by asking from the past")
	}
	if _, used, _ := table.Peek(addr(1)); used != 10 {
		t.Errorf("a use at 9 moved the time of last use from 10 to %d", used)
	}
	table.Sweep(19, 10)
	if _, ok := table.Get(addr(2), 19, 10); ok {
		t.Error("returned an expired client")
	}
}

func TestEmptyTableHoldsNoMemory(t *testing.T) {
	var table Table[Key, int]
	for i := range 1000 {
		table.Put(addr(i), i, 0)
	}
	table.Sweep(10, 10)
	if table.index != nil || table.slots != nil {
		t.Error("kept memory after a sweep of everything")
	}
	table.Put(addr(1), 1, 20)
	if b, ok := table.Get(addr(1), 20, 10); b != 1 || !ok {
		t.Error("did not recover from being emptied")
	}
}

func TestConcurrentUse(t *testing.T) {
	table := Table[Key, int]{Max: 50}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 3000 {
				client := (i*7 + g) % 100
				if b, ok := table.Get(addr(client), int64(i), 40); ok && b != client {
					t.Errorf("client %d has the backend of %d", client, b)
				} else if !ok {
					table.Put(addr(client), client, int64(i))
				}
				switch i % 100 {
				case 0:
					table.Sweep(int64(i), 40)
				case 50:
					table.DeleteFunc(func(b int) bool { return b%10 == g })
				}
			}
		})
	}
	wg.Wait()
	if n := len(contents(&table)); n != table.Len() || n > 50 {
		t.Errorf("%d entries in the list, %d in the index", n, table.Len())
	}
}

func TestHitDoesNotAllocate(t *testing.T) {
	var table Table[Key, *int]
	backend := new(int)
	for i := range 100 {
		table.Put(addr(i), backend, 0)
	}
	i := 0
	if n := testing.AllocsPerRun(1000, func() {
		i++
		if _, ok := table.Get(addr(i%100), 1, 10); !ok {
			t.Fatal("missed")
		}
		table.Put(addr(i%100), backend, 1)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkGet(b *testing.B) {
	var table Table[Key, *int]
	for i := range 10000 {
		table.Put(addr(i), new(int), 0)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		table.Get(addr(i%10000), 1, 10)
	}
}

// BenchmarkPutFull measures the worst case: each client is new and evicts one.
func BenchmarkPutFull(b *testing.B) {
	table := Table[Key, *int]{Max: 10000}
	backend := new(int)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		table.Put(addr(i%20000), backend, int64(i))
	}
}

// TestSince: those of late, in the order in which they rebuild the table.
func TestSince(t *testing.T) {
	var table Table[Key, int]
	for i := range 5 {
		table.Put(KeyOf(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})), i, int64(10*i))
	}
	table.Get(KeyOf(netip.AddrFrom4([4]byte{192, 0, 2, 0})), 45, 1000)
	var got []int
	table.Since(30, func(client Key, backend int, lastUsed int64) {
		if !client.Addr().Is4() {
			t.Errorf("client %s is not given as an IPv4 address", client.Addr())
		}
		got = append(got, backend, int(lastUsed))
	})
	if want := []int{3, 30, 4, 40, 0, 45}; !slices.Equal(got, want) {
		t.Errorf("since 30: %v, want %v", got, want)
	}
	table.Since(46, func(Key, int, int64) { t.Error("a client that was not used since") })
}
