package netfilter

import (
	"testing"

	"github.com/sluice-lb/sluice/internal/testbed"
)

// TestMarking: what matches or sets our bits of marks is found, however it is written; what has other bits, and what is
// ours, is not.
func TestMarking(t *testing.T) {
	h := testbed.NewHostsT(t, "node")[0]
	h.Enter(t)
	h.Run(t, "nft", "add table inet other; add chain inet other c; add table ip sluice-own; add chain ip sluice-own c")
	h.Run(t, "iptables-nft", "-t", "mangle", "-N", "SLUICE-OWN")
	h.Run(t, "iptables-nft", "-t", "mangle", "-N", "other")
	native, own := Place{Table: "other", Chain: "c"}, Place{Table: "sluice-own", Chain: "c"}
	for _, test := range []struct {
		at   Place
		rule string
		want bool
	}{
		{native, "meta mark & 0x00010000 == 0x00010000 accept", true},
		{native, "meta mark set meta mark | 0x00200000", true},
		{native, "meta mark set meta mark & 0xfffeffff", true},
		{native, "meta mark set 0x00010000", true},
		{native, "meta mark 0x00040001 accept", true},
		{native, "meta mark set ct mark", true},
		{native, "meta mark & 0x00004000 == 0x00004000 accept", false},
		{native, "meta mark set meta mark | 0x00004000", false},
		{native, "meta mark set 0x1", false},
		{native, "ct mark & 0x00010000 == 0x00010000 accept", false},
		{native, "tcp dport 80 ip saddr 10.1.0.0/16 accept", false},
		{native, "meta mark 0x1 tcp dport 80 ip saddr 10.1.0.0/16 accept", false},
		{own, "meta mark set meta mark | 0x00200000", false},
		{Place{Table: "mangle", Chain: "other"}, "-j MARK --set-xmark 0x10000/0x10000", true},
		{Place{Table: "mangle", Chain: "other"}, "-m mark --mark 0x80000/0x80000", true},
		{Place{Table: "mangle", Chain: "other"}, "-m mark --mark 0x4000/0x4000 -j MARK --set-xmark 0x8/0x8", false},
		{Place{Table: "mangle", Chain: "SLUICE-OWN"}, "-j MARK --set-xmark 0x10000/0x10000", false},
	} {
		switch {
		case test.at.Table == "mangle":
			h.Run(t, "sh", "-c", "iptables-nft -t mangle -A "+test.at.Chain+" "+test.rule)
		case test.at == native:
			h.Run(t, "nft", "add rule inet other c "+test.rule)
		default:
			h.Run(t, "nft", "add rule ip sluice-own c "+test.rule)
		}
		got, err := Marking(t.Context(), 0xffff0000)
		testbed.Check(t, err)
		if found := len(got) == 1 && got[0] == test.at; found != test.want || len(got) > 1 {
			t.Errorf("%v %q: %v, want %v", test.at, test.rule, got, test.want)
		}
		if test.at.Table == "mangle" {
			h.Run(t, "iptables-nft", "-t", "mangle", "-F", test.at.Chain)
		} else {
			h.Run(t, "nft", "flush ruleset inet; flush table ip sluice-own; add table inet other; add chain inet other c")
		}
	}
}
