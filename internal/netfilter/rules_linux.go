package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// Place is a chain in a table.
type Place struct{ Table, Chain string }

// Rule is a rule as the kernel holds it. The id of a rule stays while the rule
// does, and no other rule of its chain has it: the handle that nf_tables gave it
// with a hash of its contents, which can be replaced, or the text that
// iptables-legacy-save prints.
type Rule struct {
	ID     string
	Target string // the chain it leads to, if any
}

// nftRules returns the rules of a chain, none if it does not exist.
func nftRules(family uint8, at Place) ([]Rule, error) {
	filter := nfnl.AttrString(nfnl.AttrString(nil, unix.NFTA_RULE_TABLE, at.Table), unix.NFTA_RULE_CHAIN, at.Chain)
	msgs, err := nfnl.Request(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, family, filter)
	if err != nil {
		return nil, err
	}
	var out []Rule
	for _, m := range msgs {
		// Kernels before 4.15 do not filter.
		if unix.ByteSliceToString(m[unix.NFTA_RULE_TABLE]) == at.Table &&
			unix.ByteSliceToString(m[unix.NFTA_RULE_CHAIN]) == at.Chain {
			out = append(out, nftRule(m[unix.NFTA_RULE_HANDLE], m[unix.NFTA_RULE_EXPRESSIONS]))
		}
	}
	return out, nil
}

// idSeed makes the hashes of this process.
var idSeed = maphash.MakeSeed()

// nftRule makes a rule of what nf_tables says of one. The expression named counter
// changes with each packet; that named immediate holds the verdict, and so the
// chain that the rule leads to.
func nftRule(handle, expressions []byte) Rule {
	var h maphash.Hash
	h.SetSeed(idSeed)
	h.Write(handle)
	var rule Rule
	nfnl.EachAttr(expressions, func(_ uint16, expression []byte) {
		name := unix.ByteSliceToString(nfnl.Nested(expression, unix.NFTA_EXPR_NAME))
		if name == "counter" {
			return
		}
		h.Write(expression)
		if name == "immediate" {
			data := nfnl.Nested(nfnl.Nested(expression, unix.NFTA_EXPR_DATA), unix.NFTA_IMMEDIATE_DATA)
			chain := nfnl.Nested(nfnl.Nested(data, unix.NFTA_DATA_VERDICT), unix.NFTA_VERDICT_CHAIN)
			rule.Target = unix.ByteSliceToString(chain)
		}
	})
	rule.ID = strconv.FormatUint(h.Sum64(), 16)
	return rule
}

// nftTable returns the rules of every chain of an nft table for which wanted is true,
// in one request.
func nftTable(family uint8, table string, wanted func(chain string) bool) (map[string][]Rule, error) {
	msgs, err := nfnl.Exchange(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, family,
		nfnl.AttrString(nil, unix.NFTA_RULE_TABLE, table))
	if nfnl.NoSubsystem(err) || errors.Is(err, syscall.ENOENT) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("list rules of nft table %s: %w", table, err)
	}
	out := make(map[string][]Rule)
	for _, m := range msgs {
		var in, chain string
		var handle, expressions []byte
		if err := nfnl.EachAttr(m, func(kind uint16, value []byte) {
			switch kind {
			case unix.NFTA_RULE_TABLE:
				in = unix.ByteSliceToString(value)
			case unix.NFTA_RULE_CHAIN:
				chain = unix.ByteSliceToString(value)
			case unix.NFTA_RULE_HANDLE:
				handle = value
			case unix.NFTA_RULE_EXPRESSIONS:
				expressions = value
			}
		}); err != nil {
			return nil, err
		}
		if in == table && wanted(chain) {
			out[chain] = append(out[chain], nftRule(handle, expressions))
		}
	}
	return out, nil
}

// nftGeneration returns a number that changes with every transaction of nf_tables in
// this network namespace, of any program; 0 if it cannot be read.
func nftGeneration() uint32 {
	msgs, err := nfnl.Request(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC, nil)
	if err != nil || len(msgs) == 0 || len(msgs[0][unix.NFTA_GEN_ID]) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(msgs[0][unix.NFTA_GEN_ID])
}
