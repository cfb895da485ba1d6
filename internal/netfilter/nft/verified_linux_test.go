package nft

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-lb/sluice/bench/testbed"
	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
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

// TestLookWhileHashesGrow: what the kernel gives of a set while it has its hash grow, some elements twice, is not what
// another program has made of it.
func TestLookWhileHashesGrow(t *testing.T) {
	testbed.NewHostsT(t, "host")[0].Enter(t)
	for round := range 200 {
		x := &Table{Name: "grows"}
		for i := range 20 {
			x.AddSet(Set{Name: fmt.Sprint("set-", i), Key: []Field{Address, Protocol, Port}, Data: []Field{Port}})
			for port := range uint16(30) {
				x.Add(fmt.Sprint("set-", i), Element{Key: Key(netip.AddrFrom4([4]byte{10, 96, 0, 1}), uint8(6), port), Data: Key(port)}, 1)
			}
		}
		write(t, x)
		for look := range 3 {
			if same, err := x.look(t.Context()); err != nil || !same || !x.Known() {
				t.Fatalf("round %d, look %d: all is there %v, as it was written %v: %v", round, look, same, x.Known(), err)
			}
		}
	}
}
