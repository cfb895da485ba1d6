package nftables

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/sluice-lb/sluice/internal/netfilter/nft"
	"github.com/sluice-lb/sluice/internal/testbed"
	"github.com/sluice-lb/sluice/kernelmodes/lab"
	"github.com/sluice-lb/sluice/lb"
)

// TestAskModel walks through random sets of Services with Ask. After each change the kernel holds what was written, and
// has the numbers that the engine says, each for its endpoint.
func TestAskModel(t *testing.T) {
	ask := Ask{First: 1, Count: 2, Mask: 0xffff0000, Target: true, Events: true}
	eachFamily(t, func(t *testing.T, h *testbed.Host, v6 bool) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		m := &lab.Model{Rand: rand.New(rand.NewPCG(seed, 0)), IPv6: v6}
		e := &Engine{IPv6: v6, Ask: ask}
		same := 0
		changes := lab.Changes()
		for n := range changes {
			before := make(map[int]lb.Service)
			for i, s := range m.Now {
				before[i] = s
			}
			m.Change()
			had := e.endpoints.given
			if m.Rand.IntN(40) == 0 || n == changes/2 {
				e = &Engine{IPv6: v6, Ask: ask} // another process, which gives endpoints the same numbers
			}
			took := e.content == nil && len(had) > 0
			d := lab.Whole(m.Services()...)
			if e.content != nil && m.Rand.IntN(4) > 0 {
				d = m.Since(before)
			}
			syncOn(t, h, e, d)
			if !read(t, h, e) {
				t.Fatalf("change %d: the kernel does not hold what was written", n)
			}
			numbers := make(map[string]bool)
			for addr, g := range e.endpoints.given {
				numbers[nft.Key(g.number)] = true
				if was := had[addr]; took && was != nil && was.number != g.number {
					t.Fatalf("change %d: %s has number %#x, and in the process before %#x", n, addr, g.number, was.number)
				} else if took {
					same++
				}
				if e.Number(addr) != g.number {
					t.Fatalf("change %d: %s is known as %#x, want %#x", n, addr, e.Number(addr), g.number)
				}
			}
			h.DoT(t, func() error {
				list, err := e.left(setNumbered)
				if errors.Is(err, syscall.ENOENT) {
					err = nil
				}
				for _, x := range list {
					if !numbers[x.Key] {
						t.Fatalf("change %d: the kernel has number %x", n, x.Key)
					}
				}
				if len(list) != len(numbers) || len(numbers) != len(e.endpoints.given) {
					t.Fatalf("change %d: the kernel has %d numbers, want %d", n, len(list), len(e.endpoints.given))
				}
				return err
			})
		}
		if same == 0 {
			t.Error("no process has taken over")
		}
	})
}

// TestCounted: the kernel knows the addresses of Services of which it matters what is in flight.
func TestCounted(t *testing.T) {
	eachFamily(t, func(t *testing.T, h *testbed.Host, v6 bool) {
		plain := lab.Simple("plain", testbed.VIP(v6, 1).String(), 80, lb.TCP)
		counts := lab.Simple("counts", testbed.VIP(v6, 2).String(), 80, lb.TCP)
		nodePort := lb.Address{Addr: netip.AddrPortFrom(testbed.Unspecified(v6), 30080), Kind: lb.NodePort}
		counts.Addresses = append(counts.Addresses, nodePort)
		udp := lab.Simple("udp", testbed.VIP(v6, 3).String(), 80, lb.UDP)
		e := &Engine{IPv6: v6, Ask: Ask{First: 1, Count: 1, Mask: 0xffff0000, Target: true, Events: true,
			Defaults: lb.Policies{Scheduler: "lc"}}}
		wants := func(addrs, ports int) {
			t.Helper()
			syncOn(t, h, e, lab.Whole(plain, counts, udp))
			h.DoT(t, func() error {
				for set, want := range map[string]int{setCounted: addrs, setCountedPorts: ports} {
					list, err := e.left(set)
					if err != nil {
						return err
					}
					if len(list) != want {
						t.Errorf("%s has %d elements, want %d", set, len(list), want)
					}
				}
				return nil
			})
			if !read(t, h, e) {
				t.Error("the kernel does not hold what was written")
			}
		}
		wants(2, 1)
		e.Ask.Defaults = lb.Policies{}
		counts.Policies, udp.Policies = &lb.Policies{Scheduler: "lc"}, &lb.Policies{Scheduler: "lc"}
		wants(1, 1)
		counts.Policies = &lb.Policies{Scheduler: "sh"}
		wants(0, 0)
	})
}

// TestNumbers: an endpoint has one number for as long as it is used, no other one has it, it is known only while the
// kernel has it, and one that is given again is the one that rests the longest.
func TestNumbers(t *testing.T) {
	const mask, most = 0xf0000, 15
	random := rand.New(rand.NewPCG(1, 2))
	var e endpoints
	refs, numbers, rests := make(map[netip.AddrPort]int), make(map[netip.AddrPort]uint32), make(map[uint32]int)
	addr := func() netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(25))}), 80)
	}
	for step := range 20_000 {
		a := addr()
		switch random.IntN(3) {
		case 0:
			n := e.take(a, lb.Name{}, mask)
			if refs[a]++; refs[a] > 1 && n != numbers[a] {
				t.Fatalf("step %d: %s has number %#x, and before %#x", step, a, n, numbers[a])
			}
			for other, had := range numbers {
				if n != 0 && other != a && had == n {
					t.Fatalf("step %d: %s and %s have number %#x", step, a, other, n)
				}
			}
			if _, had := numbers[a]; n == 0 && !had && len(numbers) < most && len(rests) > 0 {
				t.Fatalf("step %d: no number for %s, though %d rest", step, a, len(rests))
			}
			if since, rested := rests[n]; rested && n != 0 && refs[a] == 1 {
				for other, at := range rests {
					if at < since {
						t.Fatalf("step %d: %#x was given again before %#x", step, n, other)
					}
				}
				delete(rests, n)
			}
			numbers[a] = n
		case 1:
			if refs[a] == 0 {
				continue
			}
			e.drop(a)
			if refs[a]--; refs[a] == 0 {
				delete(refs, a)
				if e.of(a) != 0 {
					t.Fatalf("step %d: %s has gone, and is known", step, a)
				}
				delete(numbers, a)
			}
		default:
			before := len(e.free)
			e.settle()
			for _, n := range e.free[before:] {
				rests[n] = step
			}
			for a, n := range numbers {
				if e.of(a) != n {
					t.Fatalf("step %d: %s is known as %#x, want %#x", step, a, e.of(a), n)
				}
			}
		}
	}
	list := []nft.Element{}
	before := make(map[uint32]netip.AddrPort)
	for a, n := range numbers {
		if n == 0 {
			delete(numbers, a)
			continue
		}
		list = append(list, nft.Element{Key: nft.Key(n), Data: nft.Key(a.Addr(), a.Port())})
		before[n] = a
	}
	e = endpoints{}
	e.keep(list, mask, false)
	for i := range byte(most) { // others, which get all that are free before those that were another's
		a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, i}), 80)
		if n := e.take(a, lb.Name{}, mask); n == 0 != (int(i) >= most-len(before)) || before[n].IsValid() {
			t.Errorf("new endpoint %d of %d beside %d kept ones has number %#x", i, most, len(before), n)
		}
	}
	for a, n := range numbers {
		if is := e.take(a, lb.Name{}, mask); is != n {
			t.Errorf("%s has number %#x in the next process, and before %#x", a, is, n)
		}
	}
	e.clear()
	if a := addr(); e.of(a) != 0 || e.take(a, lb.Name{}, mask) != 1<<16 {
		t.Error("after clear something is known, or the first number is not the lowest")
	}
}

// TestNumberShares: one Service leaves numbers to others, and what has none gets one with the change after there is one
// again.
func TestNumberShares(t *testing.T) {
	const mask, most = 0xff0000, 255
	e := endpoints{share: 80}
	big, small := lb.Name{Name: "big"}, lb.Name{Name: "small"}
	at := func(third byte, i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), third, byte(i)}), 80)
	}
	numbers := func(of lb.Name, third byte, count int) (given int) {
		for i := range count {
			if e.take(at(third, i), of, mask) != 0 {
				given++
			}
		}
		return given
	}
	got := numbers(big, 0, 1000)
	if got < most*4/5 || got > most*4/5+1 || e.unnumbered()[big] != 1000-got {
		t.Errorf("one Service has %d numbers of %d, and none for %d endpoints", got, most, e.unnumbered()[big])
	}
	if n := numbers(small, 1, 20); n != 20 {
		t.Errorf("another one has %d of 20", n)
	}
	fill := func() (filled int) {
		e.fill(mask, func(addr netip.AddrPort, number uint32, refs int) {
			filled++
			if number == 0 || refs != 1 || e.given[addr].number != number || slices.Contains(e.gone, number) {
				t.Errorf("%s gets number %#x for %d references", addr, number, refs)
			}
		})
		return filled
	}
	if n := fill(); n != 0 {
		t.Errorf("%d have numbers beyond the share", n)
	}
	gone := 0
	for i := range 500 {
		if e.drop(at(0, i)) != 0 {
			gone++
		}
	}
	n := fill()
	if n == 0 || n > most-20-got || gone != got {
		t.Errorf("%d have the numbers that are left beside %d", n, gone)
	}
	e.settle()
	n += fill()
	if want := (most - 20) * 4 / 5; n < want || n > want+1 || e.unnumbered()[big] != 500-n || int(e.has[big]) != n {
		t.Errorf("%d have numbers, %d have not", n, e.unnumbered()[big])
	}
	for i := 500; i < 1000; i++ {
		e.drop(at(0, i))
	}
	if e.has[big] != 0 || e.unnumbered() != nil {
		t.Errorf("after its end %d numbers are the Service's, and %v are missing", e.has[big], e.unnumbered())
	}
}
