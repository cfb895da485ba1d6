package netfilter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// Marking returns where rules of nf_tables of other programs, iptables-nft included, match or set bits of a packet's
// mark that are in mask. The legacy backend of iptables is not asked.
func Marking(ctx context.Context, mask uint32) (at []Place, err error) {
	there := make(map[Place]bool)
	begin := func() {
		at = nil
		clear(there)
	}
	const what = unix.NFT_MSG_GETRULE
	err = nfnl.Dump(ctx, unix.NFNL_SUBSYS_NFTABLES, what, unix.AF_UNSPEC, nil, begin, func(m nfnl.Value) {
		p := Place{Table: m.Find(unix.NFTA_RULE_TABLE).String(), Chain: m.Find(unix.NFTA_RULE_CHAIN).String()}
		ours := strings.HasPrefix(p.Table, "sluice-") || strings.HasPrefix(p.Chain, "SLUICE-")
		if !ours && !there[p] && markedBy(m.Find(unix.NFTA_RULE_EXPRESSIONS))&mask != 0 {
			there[p], at = true, append(at, p)
		}
	})
	if err != nil && !nfnl.NoSubsystem(err) && !errors.Is(err, syscall.ENOENT) {
		return nil, fmt.Errorf("list nft rules: %w", err)
	}
	return at, nil
}

// markedBy returns which bits of the packet's mark a rule matches or sets. Of a whole mark these are the ones in it.
func markedBy(expressions nfnl.Value) uint32 {
	var r markReader
	for _, e := range expressions.Attrs() {
		data := e.Find(unix.NFTA_EXPR_DATA)
		switch e.Find(unix.NFTA_EXPR_NAME).String() {
		case "meta":
			r.meta(data)
		case "bitwise":
			r.mask, r.xor, r.masked = hostUint(data.Find(unix.NFTA_BITWISE_MASK).Find(unix.NFTA_DATA_VALUE)),
				hostUint(data.Find(unix.NFTA_BITWISE_XOR).Find(unix.NFTA_DATA_VALUE)), true
		case "immediate":
			r.value = hostUint(data.Find(unix.NFTA_IMMEDIATE_DATA).Find(unix.NFTA_DATA_VALUE))
			r.loaded, r.masked = false, false
		case "cmp":
			r.match(hostUint(data.Find(unix.NFTA_CMP_DATA).Find(unix.NFTA_DATA_VALUE)))
		case "lookup", "range":
			r.match(math.MaxUint32)
		case "payload", "ct", "socket", "rt", "fib":
			r.loaded, r.masked, r.value = false, false, math.MaxUint32
		case "match", "target": // of iptables
			r.compat(data)
		}
	}
	return r.bits
}

// markReader follows a packet's mark through the expressions of a rule.
type markReader struct {
	bits      uint32 // what is matched or set
	loaded    bool   // the mark is in a register
	masked    bool   // what was loaded has gone through mask and xor
	mask, xor uint32
	value     uint32 // what a register has in place of the mark
}

// meta follows a load of something, or a write of the mark.
func (r *markReader) meta(data nfnl.Value) {
	isMark := data.Find(unix.NFTA_META_KEY).Uint() == unix.NFT_META_MARK
	switch written := data.Find(unix.NFTA_META_SREG).Bytes != nil; {
	case !written:
		r.loaded, r.masked, r.value = isMark, false, math.MaxUint32
	case !isMark:
	case r.loaded && r.masked:
		r.bits |= ^r.mask | r.xor
	case !r.loaded:
		r.bits |= r.value
	}
}

// match follows a comparison with a value.
func (r *markReader) match(value uint32) {
	switch {
	case r.loaded && r.masked:
		r.bits |= r.mask
	case r.loaded:
		r.bits |= value
	}
	r.loaded = false
}

// compat follows the match and the target of iptables, which begin with a mark and its mask
// (linux/netfilter/xt_mark.h).
func (r *markReader) compat(data nfnl.Value) {
	name, info := data.Find(unix.NFTA_TARGET_NAME).String(), data.Find(unix.NFTA_TARGET_INFO).Bytes
	if name != "mark" && name != "MARK" || len(info) < 8 {
		return
	}
	mark, mask := binary.NativeEndian.Uint32(info), binary.NativeEndian.Uint32(info[4:])
	if r.bits |= mark; mask != math.MaxUint32 {
		r.bits |= mask
	}
}

// hostUint returns a register's 32 bits, 0 for another length.
func hostUint(v nfnl.Value) uint32 {
	if len(v.Bytes) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(v.Bytes)
}
