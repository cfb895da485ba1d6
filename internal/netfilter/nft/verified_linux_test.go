package nft

import (
	"fmt"
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
