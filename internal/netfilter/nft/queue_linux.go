package nft

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
)

// Queues are consecutive queues of nfnetlink_queue. A hash of a packet's addresses and protocol says to which it
// goes, so that all packets of a flow go to one queue, whichever core handles them.
type Queues struct {
	First, Count uint16

	// Target has the target of iptables do it, for kernels that have no expression for it (CONFIG_NFT_QUEUE).
	Target bool
}

// Queue has a process judge a packet, which comes out at the next base chain. It goes on there at once if no process
// listens.
func (b *Builder) Queue(q Queues) *Builder {
	const bypass = 1 // as NFQ_FLAG_ of linux/netfilter/xt_NFQUEUE.h has it, too
	if !q.Target {
		return b.add(&expr.Queue{Num: q.First, Total: q.Count, Flag: bypass})
	}
	info := binary.NativeEndian.AppendUint16(nil, q.First) // struct xt_NFQ_info_v3, aligned to eight bytes
	info = binary.NativeEndian.AppendUint16(info, q.Count)
	info = binary.NativeEndian.AppendUint16(info, bypass)
	aligned := xt.Unknown(append(info, 0, 0))
	return b.add(&expr.Target{Name: "NFQUEUE", Rev: 3, Info: &aligned})
}

// Unconfirmed matches packets of flows of which none has got through this node yet. It differs from New: the second SYN
// of a client that nothing has answered is New, too, but has its way already.
func (b *Builder) Unconfirmed() *Builder {
	const confirmed = 1 << 3 // IPS_CONFIRMED of linux/netfilter/nf_conntrack_common.h
	return b.masked(conntrack(expr.CtKeySTATUS), confirmed, false)
}

// Events has conntrack make no other events about a flow that is new than some: bits, as of enum ip_conntrack_events of
// linux/netfilter/nf_conntrack_common.h (ct event set).
func (b *Builder) Events(mask uint32) *Builder {
	return b.add(&expr.Immediate{Register: firstRegister, Data: binary.NativeEndian.AppendUint32(nil, mask)},
		&expr.Ct{Register: firstRegister, Key: expr.CtKeyEVENTMASK, SourceRegister: true})
}

// MarkWithin loads some bits of the packet's mark.
func MarkWithin(mask uint32) Load {
	return func(b *Builder, reg uint32) uint32 {
		b.add(&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
			&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4,
				Mask: binary.NativeEndian.AppendUint32(nil, mask), Xor: make([]byte, 4)})
		return 1
	}
}
