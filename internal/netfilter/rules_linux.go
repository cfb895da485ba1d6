package netfilter

import (
	"cmp"
	"hash/maphash"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// Place is a chain in a table.
type Place struct{ Table, Chain string }

func (p Place) String() string { return "chain " + p.Chain + " of table " + p.Table }

func (p Place) compare(o Place) int {
	return cmp.Or(strings.Compare(p.Table, o.Table), strings.Compare(p.Chain, o.Chain))
}

// Rule is a rule as the kernel holds it. The id of a rule stays while the rule
// does, and no other rule of its chain has it: the handle that nf_tables gave it
// with a hash of its contents, which can be replaced, or the text that
// iptables-legacy-save prints.
type Rule struct {
	ID     string
	Target string // the chain it leads to, if any
}

// nftRules returns the rules of a chain, or of all chains of a table if at names none, by
// chain.
func nftRules(family uint8, at Place) (map[string][]Rule, error) {
	filter := nfnl.AttrString(nil, unix.NFTA_RULE_TABLE, at.Table)
	if at.Chain != "" {
		filter = nfnl.AttrString(filter, unix.NFTA_RULE_CHAIN, at.Chain)
	}
	msgs, err := nftList("rules", unix.NFT_MSG_GETRULE, family, filter)
	out := make(map[string][]Rule)
	for _, m := range msgs {
		if nfnl.String(m, unix.NFTA_RULE_TABLE) == at.Table { // kernels before 4.15 do not filter
			chain := nfnl.String(m, unix.NFTA_RULE_CHAIN)
			out[chain] = append(out[chain], nftRule(m))
		}
	}
	return out, err
}

// idSeed makes the hashes of this process.
var idSeed = maphash.MakeSeed()

// nftRule makes a rule of what nf_tables says of one. The expression named counter
// changes with each packet; that named immediate holds the verdict, and so the
// chain that the rule leads to.
func nftRule(m []byte) Rule {
	var h maphash.Hash
	h.SetSeed(idSeed)
	h.Write(nfnl.Find(m, unix.NFTA_RULE_HANDLE))
	var rule Rule
	for _, expression := range nfnl.Attrs(nfnl.Find(m, unix.NFTA_RULE_EXPRESSIONS)) {
		name := nfnl.String(expression, unix.NFTA_EXPR_NAME)
		if name == "counter" {
			continue
		}
		h.Write(expression)
		if name == "immediate" {
			data := nfnl.Find(nfnl.Find(expression, unix.NFTA_EXPR_DATA), unix.NFTA_IMMEDIATE_DATA)
			rule.Target = nfnl.String(nfnl.Find(data, unix.NFTA_DATA_VERDICT), unix.NFTA_VERDICT_CHAIN)
		}
	}
	rule.ID = strconv.FormatUint(h.Sum64(), 16)
	return rule
}

// nftGeneration returns a number that changes with every transaction of nf_tables in
// this network namespace, of any program; 0 if it cannot be read.
func nftGeneration() uint32 {
	msgs, err := nfnl.Request(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC, nil)
	if err != nil || len(msgs) == 0 {
		return 0
	}
	return uint32(nfnl.Uint(nfnl.Find(msgs[0], unix.NFTA_GEN_ID)))
}
