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
	handle string // as nf_tables has it
}

// nftRules returns the rules of a chain, or of all chains of a table if at names none, by
// chain.
func nftRules(family uint8, at Place) (map[string][]Rule, error) {
	filter := nfnl.AttrString(nil, unix.NFTA_RULE_TABLE, at.Table)
	if at.Chain != "" {
		filter = nfnl.AttrString(filter, unix.NFTA_RULE_CHAIN, at.Chain)
	}
	out := make(map[string][]Rule)
	err := nftList("rules", unix.NFT_MSG_GETRULE, family, filter, func() { clear(out) }, func(m nfnl.Value) {
		if m.Find(unix.NFTA_RULE_TABLE).String() == at.Table { // kernels before 4.15 do not filter
			chain := m.Find(unix.NFTA_RULE_CHAIN).String()
			out[chain] = append(out[chain], nftRule(m))
		}
	})
	return out, err
}

// idSeed makes the hashes of this process.
var idSeed = maphash.MakeSeed()

// nftRule makes a rule of what nf_tables says of one. The expression named counter
// changes with each packet; that named immediate holds the verdict, and so the
// chain that the rule leads to.
func nftRule(m nfnl.Value) Rule {
	var h maphash.Hash
	h.SetSeed(idSeed)
	rule := Rule{handle: string(m.Find(unix.NFTA_RULE_HANDLE).Bytes)}
	h.WriteString(rule.handle)
	for _, expression := range m.Find(unix.NFTA_RULE_EXPRESSIONS).Attrs() {
		name := expression.Find(unix.NFTA_EXPR_NAME).String()
		if name == "counter" {
			continue
		}
		h.Write(expression.Bytes)
		if name == "immediate" {
			data := expression.Find(unix.NFTA_EXPR_DATA).Find(unix.NFTA_IMMEDIATE_DATA)
			rule.Target = data.Find(unix.NFTA_DATA_VERDICT).Find(unix.NFTA_VERDICT_CHAIN).String()
		}
	}
	rule.ID = strconv.FormatUint(h.Sum64(), 16)
	return rule
}
