package nft

import (
	"testing"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestVerifyReads: a table is read back only if another program has written, whatever this one has.
func TestVerifyReads(t *testing.T) {
	eachFamily(t, func(t *testing.T, x *Table) {
		other := &Table{Name: "other", IPv6: x.IPv6, Lifetime: x.Lifetime}
		renew := func() {
			if err := Renew(x.IPv6, x.Name, x.Lifetime); err != nil {
				t.Error(err)
			}
		}
		verify(t, x, true)
		for _, step := range []struct {
			name  string
			do    func()
			reads bool
		}{
			{"renewing", renew, false},
			{"writing another table", func() { write(t, other) }, false},
			{"changing the table", func() { x.Add("endpoints", anyElement(x, "endpoints"), -1); write(t, x) }, false},
			{"a refused transaction", func() {
				other.SetChain("wrong", nil, []Rule{NewRule(x.IPv6).Jump("missing").Rule("")})
				if other.Write() == nil {
					t.Error("it was taken")
				}
			}, false},
			{"another program", func() { nft(t, "add", "table", family4or6(x), "theirs") }, true},
			{"another program, and then renewing", func() { nft(t, "delete", "table", family4or6(x), "theirs"); renew() }, true},
			{"removing another table", func() {
				if there, err := Remove(x.IPv6, other.Name); !there || err != nil {
					t.Error(there, err)
				}
			}, false},
		} {
			before := x.verified
			step.do()
			if ok, err := x.Verify(t.Context()); !ok || err != nil {
				t.Fatalf("after %s: %v, %v", step.name, ok, err)
			}
			if reads := x.verified != before; reads != step.reads {
				t.Errorf("after %s the table was read: %v, want %v", step.name, reads, step.reads)
			}
		}
	})
}

// TestNamespaceAfterAnother: what this program has written in a network namespace that has ended is not taken for what
// another one writes in a later namespace, which counts its transactions from the start, too, and may have its inode.
func TestNamespaceAfterAnother(t *testing.T) {
	t.Run("ours", func(t *testing.T) {
		testbed.NewHostsT(t, "host")[0].Enter(t)
		for range 10 {
			write(t, example(false))
			if _, err := Remove(false, example(false).Name); err != nil {
				t.Error(err)
			}
		}
	})
	for range 20 {
		t.Run("later", func(t *testing.T) {
			testbed.NewHostsT(t, "host")[0].Enter(t)
			nft(t, "add", "table", "theirs")
			before := nfnl.Generation()
			nft(t, "add", "table", "ip6", "theirs")
			if now, alone := nfnl.Alone(before); alone {
				t.Errorf("generation %d after %d is taken for one of this program's", now, before)
			}
		})
	}
}

func anyElement(x *Table, set string) (out Element) {
	x.named[set].elements.Each(func(p packed, wanted, _ bool) {
		if wanted {
			out = p.element()
		}
	})
	return out
}

// TestWritersAtOnce: what another program does between transactions of this one, which never cease, is found.
func TestWritersAtOnce(t *testing.T) {
	h := testbed.NewHostsT(t, "host")[0]
	h.Enter(t)
	x := example(false)
	write(t, x)
	renewing := testbed.Repeat(t, 1, func() error {
		return h.Do(func() error { return Renew(false, x.Name, x.Lifetime) })
	})
	for range 20 {
		verify(t, x, true)
		nft(t, "add", "rule", "ip", x.Name, "web", "drop")
		verify(t, x, false)
		write(t, x)
	}
	renewing.Stop()
}
