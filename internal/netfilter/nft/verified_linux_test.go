package nft

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestWholeIsVerified: a table that was just written whole need not be read before another program writes.
func TestWholeIsVerified(t *testing.T) {
	eachFamily(t, func(t *testing.T, x *Table) {
		if _, alone := nfnl.Alone(x.verified); !alone {
			t.Error("the table has to be read after it was written")
		}
		nft(t, "add", "table", family4or6(x), "theirs")
		if _, alone := nfnl.Alone(x.verified); alone {
			t.Error("what another program has written is not noticed")
		}
		verify(t, x, true)
	})
}

// TestManyChains: of a table of very many chains, which are read one by one, what another program changes in one is
// found and mended.
func TestManyChains(t *testing.T) {
	testbed.NewHostsT(t, "host")[0].Enter(t)
	x := &Table{Name: "many"}
	for i := range many {
		x.SetChain(fmt.Sprint("chain-", i), nil, []Rule{NewRule(false).Accept().Rule("")})
	}
	write(t, x)
	verify(t, x, true)
	nft(t, "add", "rule", "ip", x.Name, fmt.Sprint("chain-", many/2), "drop")
	verify(t, x, false)
	write(t, x)
	verify(t, x, true)
	if got, err := x.rules(t.Context(), ""); err != nil || len(got) != many {
		t.Errorf("%d chains with rules, want %d: %v", len(got), many, err)
	}
}

// TestLookBesideTransactions: chains that come and go in another table do not make those of ours look changed.
func TestLookBesideTransactions(t *testing.T) {
	h := testbed.NewHostsT(t, "host")[0]
	h.Enter(t)
	theirs, ours := &Table{Name: "theirs"}, &Table{Name: "ours"}
	for i := range 200 {
		ours.SetChain(fmt.Sprint("chain-", i), nil, nil)
	}
	write(t, theirs)
	write(t, ours)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- h.Do(func() (err error) {
			for n := 0; ctx.Err() == nil && err == nil; n++ {
				for i := range 200 {
					if name := fmt.Sprint("chain-", i); n%2 == 0 {
						theirs.SetChain(name, nil, nil)
					} else {
						theirs.DeleteChain(name)
					}
				}
				err = theirs.Write()
			}
			return err
		})
	}()
	for look := range 500 {
		if same, err := ours.look(t.Context()); err != nil || !same || !ours.Known() {
			t.Errorf("look %d: all is there %v, as it was written %v: %v", look, same, ours.Known(), err)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestLargeSetGrows: a set that gets more elements than there was room for is made anew, with all that it has, and the
// rules that use it are written again; all else stays.
func TestLargeSetGrows(t *testing.T) {
	testbed.NewHostsT(t, "host")[0].Enter(t)
	x := &Table{Name: "grows"}
	x.AddSet(Set{Name: "large", Key: []Field{Mark, Mark}, Verdicts: true, Large: true})
	x.AddSet(Set{Name: "not-so-large", Key: []Field{Mark}, Large: true})
	x.SetChain("end", nil, []Rule{NewRule(false).Drop().Rule("")})
	x.SetChain("uses", nil, []Rule{NewRule(false).Goto("large", Destination, Destination).Rule("")})
	x.SetChain("other", nil, []Rule{NewRule(false).In("not-so-large", Destination).Drop().Rule("")})
	x.Add("not-so-large", Element{Key: Key(uint32(1))}, 1)
	n, before := uint32(0), map[string]string{}
	for _, to := range []uint32{10, leastRoom, leastRoom + 1, 3 * leastRoom} {
		for ; n < to; n++ {
			x.Add("large", Element{Key: Key(n, n), Data: "end"}, 1)
		}
		grows := x.named["large"].room > 0 && int(to) > x.named["large"].room
		if to == 3*leastRoom { // and one goes
			x.Add("large", Element{Key: Key(uint32(0), uint32(0)), Data: "end"}, -1)
			to--
		}
		table := x.handle
		write(t, x)
		verify(t, x, true)
		list, there, err := Elements(false, x.Name, "large")
		if err != nil || !there || len(list) != int(to) {
			t.Errorf("%d elements, want %d: %v", len(list), to, err)
		}
		if table != "" && x.handle != table {
			t.Errorf("with %d elements the table is made anew", to)
		}
		if uses := table != "" && x.held["uses"] != before["uses"]; uses != grows {
			t.Errorf("with %d elements the rules that use the set are written again %v, want %v", to, uses, grows)
		}
		if table != "" && x.held["other"] != before["other"] {
			t.Errorf("with %d elements rules are written again that do not use the set", to)
		}
		if room := x.named["large"].room; room < int(to) {
			t.Errorf("there is room for %d of %d elements", room, to)
		}
		before = maps.Clone(x.held)
	}
}
