package nft

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/sluice-lb/sluice/internal/netfilter/nfnl"
)

// Rule is the attributes of a rule as the kernel takes them: expressions, and a comment.
type Rule string

// using returns what reports whether a rule looks something up in a set.
func using(set string) func(Rule) bool {
	attr := string(nfnl.Attr(nil, unix.NFTA_LOOKUP_SET, append([]byte(set), 0)))
	return func(r Rule) bool { return strings.Contains(string(r), attr) }
}

// shortenDirection makes the direction of a ct expression the one byte that the kernel wants: package expr encodes it
// as a last attribute of four, of which the kernel complains in its log. Padding keeps the length of all others.
func shortenDirection(data []byte, direction byte) {
	const long, short = unix.SizeofNlAttr + 4, unix.SizeofNlAttr + 1
	if len(data) < long {
		return
	}
	last := data[len(data)-long:]
	if binary.NativeEndian.Uint16(last) == long && binary.NativeEndian.Uint16(last[2:]) == unix.NFTA_CT_DIRECTION {
		binary.NativeEndian.PutUint16(last, short)
		copy(last[unix.SizeofNlAttr:], []byte{direction, 0, 0, 0})
	}
}

// Registers of four bytes, of which there are sixteen (linux/netfilter/nf_tables.h). A builder's
// keys begin at the first one, so that what a map returned is kept above.
const (
	firstRegister = unix.NFT_REG32_00
	// Result is where a map's data are: five registers above an IPv6 address, protocol, port and mark.
	Result = firstRegister + 8
)

// Load puts a value into registers from reg on, and returns how many it fills.
type Load func(b *Builder, reg uint32) (registers uint32)

// Builder makes a rule, as nft does: what matches goes on to the next expression, and anything
// else to the next rule.
type Builder struct {
	ipv6 bool
	list []expr.Any
}

// NewRule returns a rule that matches every packet of a family.
func NewRule(ipv6 bool) *Builder { return &Builder{ipv6: ipv6} }

func (b *Builder) add(e ...expr.Any) *Builder {
	b.list = append(b.list, e...)
	return b
}

// Rule returns the rule. It panics if an expression cannot be encoded, which does not depend on values.
func (b *Builder) Rule(comment string) Rule {
	var list []byte
	for _, e := range b.list {
		data, err := expr.Marshal(nfnl.Family(b.ipv6), e)
		if err != nil {
			panic(fmt.Sprintf("nft: encode %T: %v", e, err))
		}
		if ct, ok := e.(*expr.Ct); ok {
			shortenDirection(data, byte(ct.Direction))
		}
		list = nfnl.AttrNested(list, unix.NFTA_LIST_ELEM, data)
	}
	out := nfnl.AttrNested(nil, unix.NFTA_RULE_EXPRESSIONS, list)
	if comment != "" {
		// As nft writes and prints them: type NFTNL_UDATA_RULE_COMMENT, length, text (libnftnl, udata.h).
		const longest = 128
		comment = comment[:min(len(comment), longest-1)]
		user := append([]byte{0, byte(len(comment) + 1)}, comment...)
		out = nfnl.Attr(out, unix.NFTA_RULE_USERDATA, append(user, 0))
	}
	return Rule(out)
}

// payload loads bytes of a header.
func payload(base expr.PayloadBase, offset, length uint32) Load {
	return func(b *Builder, reg uint32) uint32 {
		b.add(&expr.Payload{DestRegister: reg, Base: base, Offset: offset, Len: length})
		return (length + 3) / 4
	}
}

// address loads an address of the network header.
func address(offset4, offset6 uint32) Load {
	return func(b *Builder, reg uint32) uint32 {
		if b.ipv6 {
			return payload(expr.PayloadBaseNetworkHeader, offset6, 16)(b, reg)
		}
		return payload(expr.PayloadBaseNetworkHeader, offset4, 4)(b, reg)
	}
}

func meta(key expr.MetaKey, registers uint32) Load {
	return func(b *Builder, reg uint32) uint32 {
		b.add(&expr.Meta{Key: key, Register: reg})
		return registers
	}
}

// What keys are loaded from. The ports are those of TCP, UDP and SCTP.
var (
	Source          = address(12, 8)
	Destination     = address(16, 24)
	SourcePort      = payload(expr.PayloadBaseTransportHeader, 0, 2)
	DestinationPort = payload(expr.PayloadBaseTransportHeader, 2, 2)
	L4Proto         = meta(expr.MetaKeyL4PROTO, 1)
	Family          = meta(expr.MetaKeyNFPROTO, 1)
	InInterface     = meta(expr.MetaKeyIIFNAME, 4)
)

// Constant loads a number, as Mark is in a key.
func Constant(v uint32) Load {
	return func(b *Builder, reg uint32) uint32 {
		b.add(&expr.Immediate{Register: reg, Data: binary.NativeEndian.AppendUint32(nil, v)})
		return 1
	}
}

// Rotation loads 0 to n-1 in turn: one more with each packet that gets there.
func Rotation(n uint32) Load {
	return func(b *Builder, reg uint32) uint32 {
		b.add(&expr.Numgen{Register: reg, Modulus: n, Type: unix.NFT_NG_INCREMENTAL})
		return 1
	}
}

// load loads a key and returns its first register.
func (b *Builder) load(key []Load) uint32 {
	reg := uint32(firstRegister)
	for _, l := range key {
		reg += l(b, reg)
	}
	return firstRegister
}

// In matches if a set has the key.
func (b *Builder) In(set string, key ...Load) *Builder {
	return b.add(&expr.Lookup{SourceRegister: b.load(key), SetName: set})
}

// NotIn matches if a set has not the key.
func (b *Builder) NotIn(set string, key ...Load) *Builder {
	return b.add(&expr.Lookup{SourceRegister: b.load(key), SetName: set, Invert: true})
}

// Map matches if a map has the key, and puts its data into Result.
func (b *Builder) Map(set string, key ...Load) *Builder {
	return b.add(&expr.Lookup{SourceRegister: b.load(key), SetName: set, DestRegister: Result, IsDestRegSet: true})
}

// Goto goes to the chain that a verdict map has for the key, if it has one.
func (b *Builder) Goto(set string, key ...Load) *Builder {
	return b.add(&expr.Lookup{SourceRegister: b.load(key), SetName: set, DestRegister: 0, IsDestRegSet: true})
}

// compare matches if a value is, or is not, as given.
func (b *Builder) compare(l Load, op expr.CmpOp, value []byte) *Builder {
	l(b, firstRegister)
	return b.add(&expr.Cmp{Register: firstRegister, Op: op, Data: value})
}

// masked matches if a value of four bytes has a bit of mask, or has none.
func (b *Builder) masked(l Load, mask uint32, has bool) *Builder {
	l(b, firstRegister)
	op := expr.CmpOpEq
	if has {
		op = expr.CmpOpNeq
	}
	return b.add(
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4,
			Mask: binary.NativeEndian.AppendUint32(nil, mask), Xor: make([]byte, 4)},
		&expr.Cmp{Register: firstRegister, Op: op, Data: make([]byte, 4)})
}

// Protocol matches packets of a transport protocol (unix.IPPROTO_TCP and so on).
func (b *Builder) Protocol(number uint8) *Builder {
	return b.compare(L4Proto, expr.CmpOpEq, []byte{number})
}

// New matches the first packets of a flow: a packet has one state (nft_ct_get_eval).
func (b *Builder) New() *Builder {
	return b.compare(conntrack(expr.CtKeySTATE), expr.CmpOpEq,
		binary.NativeEndian.AppendUint32(nil, expr.CtStateBitNEW))
}

// Invalid matches what belongs to no flow (ct state invalid).
func (b *Builder) Invalid() *Builder {
	return b.masked(conntrack(expr.CtKeySTATE), expr.CtStateBitINVALID, true)
}

// Translated matches, or does not, flows whose destination has changed (ct status dnat).
func (b *Builder) Translated(is bool) *Builder {
	const ipsDstNAT = 1 << 5 // IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h
	return b.masked(conntrack(expr.CtKeySTATUS), ipsDstNAT, is)
}

// Marked matches packets whose mark has a bit, or has not.
func (b *Builder) Marked(bit uint32, has bool) *Builder {
	return b.masked(meta(expr.MetaKeyMARK, 1), bit, has)
}

// SetMark sets or clears a bit of the packet's mark.
func (b *Builder) SetMark(bit uint32, set bool) *Builder {
	xor := uint32(0)
	if set {
		xor = bit
	}
	meta(expr.MetaKeyMARK, 1)(b, firstRegister)
	return b.add(
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4,
			Mask: binary.NativeEndian.AppendUint32(nil, ^bit), Xor: binary.NativeEndian.AppendUint32(nil, xor)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: firstRegister})
}

// Transparent matches packets of a connected socket of this node that is transparent (IP_TRANSPARENT).
func (b *Builder) Transparent() *Builder {
	is := func(key expr.SocketKey, value byte) {
		b.add(&expr.Socket{Key: key, Register: firstRegister},
			&expr.Cmp{Register: firstRegister, Op: expr.CmpOpEq, Data: []byte{value}})
	}
	is(expr.SocketKeyTransparent, 1) // first: kernels before 6.11 keep sockets of handshakes that the other is asked of
	is(expr.SocketKeyWildcard, 0)
	return b
}

// Wildcard matches packets to a socket of this node that is bound to no address.
func (b *Builder) Wildcard() *Builder {
	return b.add(&expr.Socket{Key: expr.SocketKeyWildcard, Register: firstRegister},
		&expr.Cmp{Register: firstRegister, Op: expr.CmpOpEq, Data: []byte{1}})
}

// tcpFlags is where the header of TCP has them (RFC 9293, 3.1).
const tcpFlags = 13

// SYN matches the first packet of a connection of TCP.
func (b *Builder) SYN() *Builder {
	const fin, syn, rst, ack = 1, 2, 4, 16
	return b.add(&expr.Payload{DestRegister: firstRegister, Base: expr.PayloadBaseTransportHeader, Offset: tcpFlags,
		Len: 1},
		&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: 1,
			Mask: []byte{fin | syn | rst | ack}, Xor: []byte{0}},
		&expr.Cmp{Register: firstRegister, Op: expr.CmpOpEq, Data: []byte{syn}})
}

func conntrack(key expr.CtKey) Load {
	return func(b *Builder, reg uint32) uint32 {
		b.add(&expr.Ct{Register: reg, Key: key})
		return 1
	}
}

// ToLocal matches packets to an address of this node, Away those to others, and FromLocal those from one
// of its addresses (fib type local).
func (b *Builder) ToLocal() *Builder { return b.local(&expr.Fib{FlagDADDR: true}, expr.CmpOpEq) }

// Away is described at ToLocal.
func (b *Builder) Away() *Builder { return b.local(&expr.Fib{FlagDADDR: true}, expr.CmpOpNeq) }

// FromLocal is described at ToLocal.
func (b *Builder) FromLocal() *Builder { return b.local(&expr.Fib{FlagSADDR: true}, expr.CmpOpEq) }

func (b *Builder) local(e *expr.Fib, op expr.CmpOp) *Builder {
	e.Register, e.ResultADDRTYPE = firstRegister, true
	return b.add(e, &expr.Cmp{Register: firstRegister, Op: op,
		Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)})
}

// Loopback matches packets to a loopback address, or not to one.
func (b *Builder) Loopback(is bool) *Builder { return b.loopback(Destination, is) }

// FromLoopback matches packets from a loopback address, or not from one.
func (b *Builder) FromLoopback(is bool) *Builder { return b.loopback(Source, is) }

func (b *Builder) loopback(l Load, is bool) *Builder {
	op, value := expr.CmpOpNeq, []byte{127}
	if is {
		op = expr.CmpOpEq
	}
	if b.ipv6 {
		value = make([]byte, 16)
		value[15] = 1
	}
	return b.compare(l, op, value)
}

// verdict ends the rule.
func (b *Builder) verdict(kind expr.VerdictKind, chain string) *Builder {
	return b.add(&expr.Verdict{Kind: kind, Chain: chain})
}

// Accept lets a packet through this base chain; others may still drop it.
func (b *Builder) Accept() *Builder { return b.verdict(expr.VerdictAccept, "") }

// Drop drops a packet.
func (b *Builder) Drop() *Builder { return b.verdict(expr.VerdictDrop, "") }

// Return goes on after the rule that led to this chain.
func (b *Builder) Return() *Builder { return b.verdict(expr.VerdictReturn, "") }

// Jump goes to a chain, and comes back.
func (b *Builder) Jump(chain string) *Builder { return b.verdict(expr.VerdictJump, chain) }

// GotoChain goes to a chain, and does not come back.
func (b *Builder) GotoChain(chain string) *Builder { return b.verdict(expr.VerdictGoto, chain) }

// Reject answers with a reset, where reset says that the packet is one of TCP, or with ICMP's port
// unreachable. It is for chains at prerouting (Linux 5.9), input, forward and output.
func (b *Builder) Reject(reset bool) *Builder {
	if reset {
		return b.add(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
	}
	const unreachable4, unreachable6 = 3, 4 // port unreachable: RFC 792, RFC 4443
	code := uint8(unreachable4)
	if b.ipv6 {
		code = unreachable6
	}
	return b.add(&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code})
}

// Masquerade makes this node the source, from a port chosen at random.
func (b *Builder) Masquerade() *Builder { return b.add(&expr.Masq{FullyRandom: true}) }

// Redirect sends packets to a port of this node that a map has put into Result.
func (b *Builder) Redirect() *Builder { return b.add(&expr.Redir{RegisterProtoMin: Result}) }

// DNATPort sends packets to an address, and the port that a map has put into Result.
func (b *Builder) DNATPort(addr netip.Addr) *Builder {
	const above = Result + 1
	return b.add(&expr.Immediate{Register: above, Data: addr.AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(nfnl.Family(b.ipv6)), RegAddrMin: above,
			RegProtoMin: Result, Specified: true})
}

// DNAT sends packets to the address and port that a map has put into Result.
func (b *Builder) DNAT() *Builder { return b.dnat() }

// DNATTo sends packets to an address and a port.
func (b *Builder) DNATTo(to netip.AddrPort) *Builder {
	return b.add(
		&expr.Immediate{Register: Result, Data: to.Addr().AsSlice()},
		&expr.Immediate{Register: Result + b.words(), Data: []byte(Key(to.Port()))},
	).dnat()
}

func (b *Builder) dnat() *Builder {
	return b.add(&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(nfnl.Family(b.ipv6)), RegAddrMin: Result,
		RegProtoMin: Result + b.words(), Specified: true})
}

// words is how many registers an address fills.
func (b *Builder) words() uint32 {
	if b.ipv6 {
		return 4
	}
	return 1
}

// Remember adds the key to a dynamic set, or has it time out later. A dynamic map would do for all clients
// of a Service, but nft 1.0.6 aborts where it lists a rule in which a map's data are a key, or the data of
// another map (netlink_parse_concat_expr).
func (b *Builder) Remember(set string, timeout time.Duration, key ...Load) *Builder {
	return b.add(&expr.Dynset{SrcRegKey: b.load(key), SetName: set, Timeout: timeout,
		Operation: unix.NFT_DYNSET_OP_UPDATE})
}

// Is matches if a key is, or is not, as given.
func (b *Builder) Is(l Load, is bool, value string) *Builder {
	if is {
		return b.compare(l, expr.CmpOpEq, []byte(value))
	}
	return b.compare(l, expr.CmpOpNeq, []byte(value))
}

// Begins matches if the name of the interface by which a packet came begins with a prefix.
func (b *Builder) Begins(prefix string) *Builder {
	return b.compare(InInterface, expr.CmpOpEq, []byte(prefix))
}

// From matches, or does not, packets from an address within a prefix.
func (b *Builder) From(p netip.Prefix, is bool) *Builder {
	Source(b, firstRegister)
	addr := p.Masked().Addr().AsSlice()
	mask := net.CIDRMask(p.Bits(), len(addr)*8)
	op := expr.CmpOpNeq
	if is {
		op = expr.CmpOpEq
	}
	return b.add(&expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: uint32(len(addr)),
		Mask: mask, Xor: make([]byte, len(addr))}, &expr.Cmp{Register: firstRegister, Op: op, Data: addr})
}
