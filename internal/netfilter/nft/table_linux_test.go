package nft

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.Main(m)) }

// eachFamily runs a test with the example written, on a host of its own.
func eachFamily(t *testing.T, f func(t *testing.T, x *Table)) {
	for name, ipv6 := range map[string]bool{"ip": false, "ip6": true} {
		t.Run(name, func(t *testing.T) {
			testbed.NewHostsT(t, "host")[0].Enter(t)
			x := example(ipv6)
			write(t, x)
			f(t, x)
		})
	}
}

func write(t *testing.T, x *Table) {
	t.Helper()
	if err := x.Write(); err != nil {
		t.Fatal(err)
	}
}

// verify checks what Verify says, by the generation of nf_tables and by reading all of it.
func verify(t *testing.T, x *Table, want bool) {
	t.Helper()
	for _, read := range []bool{false, true} {
		if read {
			x.verified = 0
		}
		if ok, err := x.Verify(t.Context()); ok != want || err != nil {
			t.Fatalf("Verify, reading all %v: %v, %v; want %v", read, ok, err, want)
		}
		if !want {
			return // it is for the next Write
		}
	}
}

func nft(t *testing.T, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		testbed.Missing(t, err.Error())
	}
	out, err := exec.Command("nft", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestWrite(t *testing.T) {
	eachFamily(t, func(t *testing.T, x *Table) {
		verify(t, x, true)
		list := nft(t, "list", "ruleset")
		for _, part := range []string{"map @steer", "vmap @services", "numgen inc mod 2 map @endpoints", "update @clients",
			"masquerade fully-random", "reject with tcp reset", `comment "default/web"`} {
			if !strings.Contains(list, part) {
				t.Errorf("nft lists no %q in\n%s", part, list)
			}
		}
	})
}

// A change writes what differs, and the kernel holds that.
func TestChange(t *testing.T) {
	eachFamily(t, func(t *testing.T, x *Table) {
		key := Key(uint32(7), uint32(1))
		var old Element
		x.named["endpoints"].elements.Each(func(p packed, _, _ bool) {
			if e := p.element(); e.Key == key {
				old = e
			}
		})
		x.Add("endpoints", old, -1)
		x.Add("endpoints", Element{Key: key, Data: Key(addrOf(x, "192.0.2.9", "2001:db8::9"), uint16(9090))}, 1)
		x.AddSet(Set{Name: "more", Key: []Field{Port}})
		x.Add("more", Element{Key: Key(uint16(53))}, 1)
		x.SetChain("late", nil, []Rule{NewRule(x.IPv6).In("more", DestinationPort).Drop().Rule("")})
		x.SetChain("web2", nil, []Rule{NewRule(x.IPv6).Jump("late").Rule("")})
		write(t, x)
		verify(t, x, true)
		if list := nft(t, "list", "table", family4or6(x), x.Name); !strings.Contains(list, ". 9090") ||
			strings.Count(list, ". 8080") != strings.Count(nft(t, "list", "chain", family4or6(x), x.Name, "web-1"), ". 8080")+1 {
			t.Error(list)
		}

		x.SetChain("web2", nil, nil)
		x.DeleteChain("late")
		x.DeleteSet("more")
		write(t, x)
		verify(t, x, true)
		transactions := x.Counters.Transactions.Load()
		if write(t, x); x.Counters.Transactions.Load() != transactions {
			t.Error("a Write of nothing is a transaction")
		}
	})
}

// Ranges grow, shrink, split and join in one transaction.
func TestRanges(t *testing.T) {
	eachFamily(t, func(t *testing.T, x *Table) {
		wide := netip.MustParsePrefix("198.51.0.0/16")
		if x.IPv6 {
			wide = netip.MustParsePrefix("2001:db8::/32")
		}
		in := func(bits int, at netip.Addr) netip.Prefix { return netip.PrefixFrom(at, wide.Bits()+bits) }
		first, last := wide.Addr(), lastOf(wide)
		have := []netip.Prefix{netip.MustParsePrefix(addrOf(x, "198.51.100.0", "2001:db8:1::").String() + map[bool]string{false: "/24", true: "/48"}[x.IPv6])}
		for _, next := range [][]netip.Prefix{
			{wide}, {in(8, first)}, {in(4, first), in(4, last)}, {in(8, first), in(1, last)}, {wide},
			{in(1, first), in(1, last)}, {wide}, {in(16, last)}, {wide}, {},
		} {
			for _, set := range []string{"inside", "allowed"} {
				before := []any{addrOf(x, "192.0.2.1", "2001:db8::1"), uint8(6), uint16(80)}
				if set == "inside" {
					before = nil
				}
				for _, p := range have {
					x.Add(set, Range(p, before...), -1)
				}
				for _, p := range next {
					x.Add(set, Range(p, before...), 1)
				}
			}
			have = next
			write(t, x)
			x.verified = 0
			verify(t, x, true)
			for _, p := range next {
				want := strings.TrimSuffix(p.Masked().String(), "/32")
				if list := nft(t, "list", "set", family4or6(x), x.Name, "inside"); !strings.Contains(list, want) {
					t.Errorf("no %s in %s", want, list)
				}
			}
		}
	})
}

func addrOf(x *Table, v4, v6 string) netip.Addr {
	if x.IPv6 {
		return addr(v6)
	}
	return addr(v4)
}

func family4or6(x *Table) string {
	if x.IPv6 {
		return "ip6"
	}
	return "ip"
}

// What another program does to the table is found, and the next Write makes it as it was; what it
// does elsewhere is not.
func TestDamage(t *testing.T) {
	eachFamily(t, func(t *testing.T, x *Table) {
		family, ip := family4or6(x), addrOf(x, "192.0.2.1", "2001:db8::1").String()
		nft(t, "add", "table", family, "other")
		verify(t, x, true)
		for _, damage := range [][]string{
			{"flush", "ruleset"},
			{"delete", "table", family, x.Name},
			{"flush", "chain", family, x.Name, "web"},
			{"add", "rule", family, x.Name, "web", "drop"},
			{"add", "chain", family, x.Name, "strange"},
			{"delete", "element", family, x.Name, "steer", "{ " + ip + " . tcp . 80 }"},
			{"add", "element", family, x.Name, "same", "{ " + ip + " . " + addrOf(x, "192.0.2.7", "2001:db8::7").String() + " }"},
			{"flush", "set", family, x.Name, "inside"},
			{"flush", "set", family, x.Name, aliveSet},
		} {
			nft(t, damage...)
			verify(t, x, false)
			write(t, x)
			verify(t, x, true)
		}
	})
}

// Damaged rules and elements are written, and the others stay as they are: their handles do not change. If more is
// damaged after Verify has looked, all is written.
func TestMend(t *testing.T) {
	eachFamily(t, func(t *testing.T, x *Table) {
		family, ip := family4or6(x), addrOf(x, "192.0.2.1", "2001:db8::1").String()
		key := "{ " + ip + " . tcp . 80 }"
		mended := []string{"web", "web2"}
		elements, rules := x.Counters.Elements.Load(), x.Counters.Rules.Load()
		before := maps.Clone(x.held)
		damage := func() {
			t.Helper()
			nft(t, "flush chain "+family+" example web; add rule "+family+" example web2 drop")
			nft(t, "delete element "+family+" example steer "+key)
			nft(t, "add element "+family+" example steer { "+ip+" . udp . 9 : 9 }")
			verify(t, x, false)
			if x.Known() {
				t.Error("a damaged table is known")
			}
		}
		settled := func() {
			t.Helper()
			write(t, x)
			verify(t, x, true)
			if e, r := x.Counters.Elements.Load(), x.Counters.Rules.Load(); e != elements || r != rules {
				t.Errorf("%d elements and %d rules are counted, want %d and %d", e, r, elements, rules)
			}
		}
		damage()
		settled()
		for name, handles := range x.held {
			if slices.Contains(mended, name) == (handles == before[name]) {
				t.Errorf("chain %s: written anew %v", name, handles != before[name])
			}
		}

		damage()
		nft(t, "delete element "+family+" example steer { "+ip+" . udp . 9 }") // which is to be deleted
		settled()
		if n := x.Counters.Failures.Load(); n != 1 {
			t.Errorf("%d transactions failed, want that which deletes what another program has deleted", n)
		}
	})
}

// A refused change changes nothing, and the error names what was refused.
func TestRefused(t *testing.T) {
	eachFamily(t, func(t *testing.T, x *Table) {
		x.SetChain("web2", nil, []Rule{NewRule(x.IPv6).Jump("missing").Rule("")})
		// More than a socket has room for the answers to.
		x.SetChain("web3", nil, slices.Repeat([]Rule{NewRule(x.IPv6).Jump("missing").Rule("")}, 5000))
		err := x.Write()
		if !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), "add rule to web2") {
			t.Errorf("the error is %v", err)
		}
		x.DeleteChain("web3")
		if x.Counters.Failures.Load() != 1 || x.Known() {
			t.Error("a failure is not counted")
		}
		x.SetChain("web2", nil, example(x.IPv6).chains["web2"].rules)
		write(t, x)
		verify(t, x, true)
	})
}

// What rules have added to a dynamic set stays when the table is replaced.
func TestDynamicStays(t *testing.T) {
	eachFamily(t, func(t *testing.T, x *Table) {
		list := []Client{{Key(addrOf(x, "192.0.2.77", "2001:db8::77")), time.Minute},
			{Key(addrOf(x, "192.0.2.78", "2001:db8::78")), time.Hour}}
		for range 2 { // the second replaces the first
			if err := x.Insert("clients", time.Hour, list); err != nil {
				t.Fatal(err)
			}
		}
		x.Forget()
		write(t, x)
		verify(t, x, true)
		have, err := x.Read("clients")
		if err != nil || len(have) != len(list) {
			t.Fatalf("%v, %v", have, err)
		}
		for _, c := range have {
			i := slices.IndexFunc(list, func(l Client) bool { return l.Key == c.Key })
			if i < 0 || c.Left > list[i].Left || c.Left < list[i].Left-30*time.Second {
				t.Errorf("%x has %v left", c.Key, c.Left)
			}
		}
	})
}

// A full set keeps what came first, and replaces what it has. To remove what has expired is no error.
func TestFullSet(t *testing.T) {
	eachFamily(t, func(t *testing.T, x *Table) {
		first, size := addrOf(x, "198.51.0.0", "2001:db8:2::"), int(x.named["clients"].Size)
		list, keys := make([]Client, size+500), make(map[string]bool)
		for i := range list {
			list[i] = Client{Key(first), time.Minute}
			keys[list[i].Key] = i < size
			first = first.Next()
		}
		insert := func(left time.Duration) {
			for i := range list {
				list[i].Left = left
			}
			if err := x.Insert("clients", time.Hour, list); err != nil {
				t.Fatal(err)
			}
			have, err := x.Read("clients")
			if err != nil || len(have) != size {
				t.Fatalf("%d elements of %d, %v", len(have), size, err)
			}
			for _, c := range have {
				if !keys[c.Key] || c.Left > left || c.Left < left-30*time.Second {
					t.Fatalf("%x has %v left, of %v", c.Key, c.Left, left)
				}
			}
		}
		insert(time.Minute)
		insert(30 * time.Minute)
		if err := x.Expel("clients", keys); err != nil {
			t.Fatal(err)
		}
		if have, err := x.Read("clients"); err != nil || len(have) > 0 {
			t.Errorf("%d stay, %v", len(have), err)
		}
		gone, s := []timed{{Element: Element{Key: list[0].Key}}}, x.named["clients"]
		b := x.batch()
		if b.elements(unix.NFT_MSG_DELSETELEM, s, slices.Values(gone)); !errors.Is(b.send(), syscall.ENOENT) {
			t.Error("the kernel lets what is not there be deleted")
		}
		b = x.batch()
		b.expel(s, gone)
		if err := b.send(); err != nil {
			t.Error(err)
		}
		if x.Counters.Failures.Load() > 0 {
			t.Error("failures are counted")
		}
	})
}

// Without a renewal the element that lets rules match goes.
func TestLifetime(t *testing.T) {
	eachFamily(t, func(t *testing.T, x *Table) {
		alive := func() int {
			list, err := x.Read(aliveSet)
			if err != nil {
				t.Fatal(err)
			}
			return len(list)
		}
		for range 2 {
			if err := Renew(x.IPv6, x.Name, x.Lifetime); err != nil {
				t.Fatal(err)
			}
			if list, err := x.Read(aliveSet); err != nil || len(list) != 1 || list[0].Left < x.Lifetime-10*time.Second {
				t.Fatalf("%v, %v", list, err)
			}
		}
		verify(t, x, true)
		x.Lifetime = 50 * time.Millisecond
		if err := Renew(x.IPv6, x.Name, x.Lifetime); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(10 * time.Second); alive() > 0; runtime.Gosched() { // the kernel has no event for it
			if time.Now().After(end) {
				t.Fatal("the rules still match")
			}
		}
		x.Lifetime = time.Hour // longer than a busy machine takes to look
		if err := Renew(x.IPv6, x.Name, x.Lifetime); err != nil || alive() != 1 {
			t.Errorf("%v, or it is not there again", err)
		}
	})
}

func TestRemove(t *testing.T) {
	eachFamily(t, func(t *testing.T, x *Table) {
		for _, want := range []bool{true, false} {
			if there, err := Remove(x.IPv6, x.Name); there != want || err != nil {
				t.Errorf("%v, %v; want %v", there, err, want)
			}
		}
		if list := nft(t, "list", "ruleset"); list != "" {
			t.Error(list)
		}
	})
}

// A monitor notices what other programs write, and not what this one does, be it much.
func TestMonitor(t *testing.T) {
	eachFamily(t, func(t *testing.T, x *Table) {
		m, err := OpenMonitor()
		if err != nil {
			t.Fatal(err)
		}
		changes, done := make(chan struct{}, 10), make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- m.Run(ctx, func() { changes <- struct{}{} }) }()
		noticed := func(what string) {
			t.Helper()
			select {
			case <-changes:
			case <-time.After(10 * time.Second):
				t.Errorf("the monitor did not notice %s", what)
			}
			if len(changes) > 0 {
				t.Errorf("beside %s the monitor noticed %d changes more", what, len(changes))
			}
		}
		other := func(verb string) { nft(t, verb, "table", family4or6(x), "other") }
		x.Forget()
		write(t, x)
		other("add")
		noticed("another table")
		for i := range 2000 {
			x.Add("endpoints", Element{Key: Key(uint32(1000), uint32(i)), Data: anyElement(x, "endpoints").Data}, 1)
		}
		write(t, x)
		x.Forget()
		write(t, x)
		other("delete")
		noticed("the end of that table, after large transactions")
		b := x.batch()
		err = x.whole(b, nil)
		if err != nil || len(b.bytes) < large {
			t.Fatal(len(b.bytes), err)
		}
		_, err = unheard(func() error {
			other("add")
			return b.transact()
		})
		if err != nil {
			t.Fatal(err)
		}
		noticed("another table in a large transaction")
		other("delete")
		noticed("its end")
		cancel()
		if err := <-done; err != nil || len(changes) > 0 {
			t.Errorf("%v, and it noticed %d changes more", err, len(changes))
		}
	})
}
